// What a stack says to a layout of LLaMA-2-13B.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "core/plan/stack_spec.hpp"

namespace sextant {

inline std::filesystem::path preset_dir() {
  return std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets";
}

inline ModelSpec llama13b() {
  ModelSpec m;
  m.name = "llama-2-13b";
  m.n_layers = 40;
  m.hidden = 5120;
  m.n_heads = m.n_kv_heads = 40;
  m.head_dim = 128;
  m.ffn_hidden = 13824;
  m.vocab_size = 32000;
  return m;
}

// A layout that every stack below may be asked for, with nothing that is optional.
inline ParallelPlan plain() {
  ParallelPlan p;
  p.dp = 8;
  p.overlap_grad_reduce = p.overlap_param_gather = false;
  return p;
}

// Without `stated` gradients are in the stack's own format.
inline std::string refusal(const std::string& stack, const ParallelPlan& p,
                           const std::optional<TrainingSpec>& stated = std::nullopt) {
  const StackSpec spec = load_stack(stack, preset_dir());
  TrainingSpec t = stated.value_or(TrainingSpec{});
  if (!stated) t.gradient = t.reduction = own_gradient_format(spec, t.parameter);
  const auto r = refuses(spec, p, llama13b(), t);
  if (!r) return "";
  EXPECT_EQ(r->reason, RejectReason::unsupported_by_stack);
  return r->text;
}

}  // namespace sextant
