// Which file of a sharded checkpoint holds which tensor: model.safetensors.index.json of transformers, parsed and judged
// by itself. Whether the files are there, and hold what it says, is asked by the folder (hugging_face.hpp).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace sextant {

struct WeightIndex {
  std::map<std::string, std::string, std::less<>> shard_of;  // tensor -> file name beside the index
  std::optional<std::uint64_t> total_size;                   // bytes of all tensors, where stated
  bool operator==(const WeightIndex&) const = default;
};

// Throws ConfigError with every problem. A shard's name is that of a .safetensors file beside the index: an index cannot
// lead anywhere else.
WeightIndex parse_weight_index(std::string_view text, const std::string& file);

std::string to_text(const WeightIndex&);

}  // namespace sextant
