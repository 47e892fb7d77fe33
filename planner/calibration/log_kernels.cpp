#include "planner/calibration/log_kernels.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/dtype.hpp"

namespace sextant {

namespace {

constexpr std::array<std::string_view, 6> kFusions = {"bias_swiglu_fusion",        "bias_gelu_fusion",
                                                      "bias_dropout_fusion",       "apply_rope_fusion",
                                                      "cross_entropy_loss_fusion", "masked_softmax_fusion"};

// Once all arguments have been read: Transformer Engine's choice is its own unless a backend is named.
void choose_attention(LoggedKernels& kernels) {
  kernels.attention.reset();
  const std::string& b = kernels.backend;
  const AttentionKernel local = kernels.flash           ? AttentionKernel::flash2
                                : kernels.fused_softmax ? AttentionKernel::fused_softmax
                                                        : AttentionKernel::unfused;
  if (b == "flash")
    kernels.attention = AttentionKernel::flash2;
  else if (b == "fused")
    kernels.attention = AttentionKernel::cudnn;
  else if (b == "unfused")
    kernels.attention = AttentionKernel::unfused;
  else if (b == "local" || !kernels.transformer_engine)
    kernels.attention = local;
}

}  // namespace

std::optional<Blocks> LoggedKernels::blocks() const {
  if (compiles) return Blocks::compiled;
  if (builds_model) return Blocks::eager;
  return std::nullopt;
}

void read_kernel_argument(std::string_view key, std::string_view value, LoggedKernels& kernels) {
  const bool yes = value == "True", no = value == "False";
  if (key == "gradient_accumulation_fusion" && (yes || no)) kernels.accumulates_in_gemm = yes;
  if (key == "transformer_impl") kernels.transformer_engine = value != "local";
  if (key == "use_flash_attn") kernels.flash = yes;
  if (key == "masked_softmax_fusion") kernels.fused_softmax = yes;
  // "AttnBackend.flash"
  if (key == "attention_backend") kernels.backend = value.substr(value.rfind('.') + 1);
  choose_attention(kernels);
  if (no && std::ranges::find(kFusions, key) != kFusions.end() &&
      std::ranges::find(kernels.unfused, key) == kernels.unfused.end())
    kernels.unfused.emplace_back(key);
}

void read_torchtitan_kernels(std::string_view line, LoggedKernels& kernels) {
  const auto has = [&](std::string_view text) { return line.find(text) != std::string_view::npos; };
  // Printed behind all that compile blocks.
  if (has("Applied ") && has("SDP to the model")) kernels.builds_model = true;
  if (has("Applied fully_shard to the model") || has("Applied DDP to the model")) kernels.builds_model = true;
  if (has("Compiling each TransformerBlock with torch.compile")) kernels.compiles = true;
}

std::vector<std::string> apply_kernels(const LoggedKernels& kernels, const TrainingSpec& training,
                                       StackSpec& stack) {
  std::vector<std::string> notes;
  if (kernels.attention) stack.kernels.attention = *kernels.attention;
  // Otherwise the GEMM writes a gradient in the format of parameters, which is read and added to what is read and written.
  if (kernels.accumulates_in_gemm)
    stack.kernels.accumulate_bytes =
        *kernels.accumulates_in_gemm ? 0
                                     : size_bytes(training.parameter) + 2.0 * size_bytes(training.gradient);
  std::vector<std::string> unfused = kernels.unfused;
  // Its kernel counts where no flash attention runs, and is in kernels.attention then.
  std::erase(unfused, "masked_softmax_fusion");
  if (!unfused.empty())
    notes.push_back(fmt::format("{} off, as the log states, and priced as {} usually runs it",
                                fmt::join(unfused, ", "), stack.name));
  const auto blocks = kernels.blocks();
  if (blocks && *blocks != stack.kernels.blocks)
    notes.push_back(fmt::format("the log shows {} blocks, priced as {}",
                                kBlocksNames[static_cast<std::size_t>(*blocks)],
                                kBlocksNames[static_cast<std::size_t>(stack.kernels.blocks)]));
  return notes;
}

}  // namespace sextant
