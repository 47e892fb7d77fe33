// Which kernels did a run use, as its log says: blocks eager or compiled, the attention kernel, weight gradients added inside
// their GEMM. What a log says replaces what the preset of the stack assumes. Sources: pytorch/torchtitan distributed/compile.py
// and parallelize.py (what they print), NVIDIA/Megatron-LM arguments.py (names of arguments).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/training_spec.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

struct LoggedKernels {
  std::optional<AttentionKernel> attention;
  std::optional<bool> accumulates_in_gemm;
  std::vector<std::string> unfused;             // arguments of Megatron-LM that turn a fused kernel off
  bool builds_model = false, compiles = false;  // lines of torchtitan
  bool transformer_engine = true, flash = false, fused_softmax = false;  // arguments of Megatron-LM
  std::string backend;                                                   // --attention-backend: "flash"

  // Nothing where the lines that would tell are not in the log.
  std::optional<Blocks> blocks() const;
};

// An argument as Megatron-LM prints it.
void read_kernel_argument(std::string_view key, std::string_view value, LoggedKernels&);
void read_torchtitan_kernels(std::string_view line, LoggedKernels&);

// Into the stack; what is said and cannot be priced, or what its blocks contradict, is returned as notes.
std::vector<std::string> apply_kernels(const LoggedKernels&, const TrainingSpec&, StackSpec&);

}  // namespace sextant
