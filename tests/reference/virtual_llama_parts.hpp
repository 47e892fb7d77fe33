// What the three sources of VirtualLlama share: names, indices of saved tensors, and the head's workspace.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/reference/virtual_llama.hpp"

namespace sextant::testing {

inline std::string layer_name(int layer, const char* rest) {
  return fmt::format("model.layers.{}.{}.weight", layer, rest);
}
inline bool ends_with(const std::string& s, const char* tail) {
  return s.ends_with(std::string(tail) + ".weight");
}

inline void copy(const TensorView& from, const TensorView& to) {
  cpu_kernels().cast({.source = from, .destination = to});
}

inline int attention_set(int layer) { return 2 * layer; }
inline int mlp_set(int layer) { return 2 * layer + 1; }

// The head on one rank: chunked workspace and everything but where results go.
struct HeadWorkspace {
  std::vector<std::uint64_t> memory;
  HeadUnit unit;
  HeadWorkspace(const BlockWork& w, int chunk, const TensorView& weight, const TensorView& normed,
                std::span<const std::int32_t> targets, std::int64_t first_id, std::int64_t vocab) {
    const BlockTensors list = workspace_tensors(w, chunk);
    memory.resize(static_cast<std::size_t>(total_bytes(list).v / 8));
    const TensorSet set(list, memory.data());
    unit = {weight,
            normed,
            targets,
            first_id,
            vocab,
            set["logits"],
            list.size() > 1 ? set["dlogits"] : TensorView()};
  }
};

}  // namespace sextant::testing
