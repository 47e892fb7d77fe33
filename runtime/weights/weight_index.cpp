#include "runtime/weights/weight_index.hpp"

#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/json_io.hpp"

namespace sextant {
namespace {

// Empty when it is a plain name of a safetensors file; otherwise what is wrong.
std::string refusal(const std::string& shard) {
  if (shard.find('/') != shard.npos || shard.find('\\') != shard.npos || shard.find('\0') != shard.npos)
    return "the name of a file beside the index, without a path";
  if (!shard.ends_with(".safetensors") || shard.size() == std::string_view(".safetensors").size())
    return "the name of a .safetensors file";
  return "";
}

}  // namespace

WeightIndex parse_weight_index(std::string_view text, const std::string& file) {
  const nlohmann::json j = parse_json(text, file);
  if (!j.is_object()) throw ConfigError(Problem{file, "", j.type_name(), "a JSON object", ""});
  const auto map = j.find("weight_map");
  if (map == j.end() || !map->is_object() || map->empty())
    throw ConfigError(Problem{file, "weight_map", map == j.end() ? "nothing" : map->dump().substr(0, 40),
                              "an object of tensor names and the files that hold them", ""});
  WeightIndex index;
  std::vector<Problem> problems;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    const std::string expected = shard.is_string() ? refusal(name) : "the name of a file";
    if (expected.empty())
      index.shard_of[tensor] = name;
    else
      problems.push_back({file, "weight_map." + tensor, shard.dump().substr(0, 80), expected, ""});
  }
  if (const auto metadata = j.find("metadata"); metadata != j.end() && metadata->is_object())
    if (const auto total = metadata->find("total_size"); total != metadata->end()) {
      // Some writers have it as a float.
      if (total->is_number_unsigned())
        index.total_size = total->get<std::uint64_t>();
      else if (total->is_number_float() && total->get<double>() >= 0 && total->get<double>() < 0x1p63)
        index.total_size = static_cast<std::uint64_t>(total->get<double>());
      else
        problems.push_back(
            {file, "metadata.total_size", total->dump().substr(0, 80), "a number of bytes", ""});
    }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return index;
}

std::string to_text(const WeightIndex& index) {
  nlohmann::ordered_json j;
  j["metadata"] = nlohmann::ordered_json::object();
  if (index.total_size) j["metadata"]["total_size"] = *index.total_size;
  j["weight_map"] = index.shard_of;
  return j.dump(2) + "\n";
}

}  // namespace sextant
