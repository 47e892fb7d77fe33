#include <cmath>

#include <nlohmann/json.hpp>

#include "core/base/decimal.hpp"
#include "core/base/json_io.hpp"
#include "core/base/json_units.hpp"

namespace sextant {

using nlohmann::json;

JsonWriter::JsonWriter(json& out) : out_(out) { out_ = json::object(); }

json& JsonWriter::slot(std::string_view key) { return out_[std::string(key)]; }
json& JsonWriter::member(json& object, std::string_view key) { return object[std::string(key)]; }
json& JsonWriter::append(json& array) { return array.emplace_back(); }
void JsonWriter::make_array(json& out) { out = json::array(); }
void JsonWriter::make_object(json& out) { out = json::object(); }

void JsonWriter::write(json& out, const std::string&, bool value) { out = value; }
void JsonWriter::write(json& out, const std::string&, const std::string& value) { out = value; }
void JsonWriter::write_integer(json& out, std::int64_t value) { out = value; }

void JsonWriter::write(json& out, const std::string& key, double value, Range) {
  SEXTANT_CHECK(std::isfinite(value), "JSON has no way to write the number of " + key);
  out = value;
}

void JsonWriter::write_quantity(json& out, const std::string& key, double value) {
  const Unit& unit = unit_of(key);
  const auto number =
      unit.binary ? std::optional(value / unit.factor) : parse_decimal(decimal(value, unit.shift));
  SEXTANT_CHECK(number && std::isfinite(*number), "JSON has no way to write the number of " + key);
  write(out, key, *number);
}

void JsonWriter::write(json& out, const std::string& key, Bytes value, Range) {
  const Unit& unit = unit_of(key);
  if (unit.factor == 1)
    out = value.v;
  else
    out = static_cast<double>(value.v) / unit.factor;
}

}  // namespace sextant
