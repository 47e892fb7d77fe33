#include "core/base/shallow_json.hpp"

namespace sextant {

using nlohmann::json;

namespace {

// Looks at nothing but how deep it goes.
class Depth : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(json::number_integer_t) override { return true; }
  bool number_unsigned(json::number_unsigned_t) override { return true; }
  bool number_float(json::number_float_t, const json::string_t&) override { return true; }
  bool string(json::string_t&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool key(json::string_t&) override { return true; }
  bool start_object(std::size_t) override { return ++depth_ <= kMostJsonLevels; }
  bool start_array(std::size_t) override { return ++depth_ <= kMostJsonLevels; }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override { return false; }

 private:
  std::size_t depth_ = 0;
};

}  // namespace

bool is_shallow_json(std::string_view text) {
  Depth depth;
  return json::sax_parse(text.begin(), text.end(), &depth, json::input_format_t::json, /*strict=*/true,
                         /*ignore_comments=*/true);
}

}  // namespace sextant
