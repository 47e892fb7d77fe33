#include "tools/inputs/precision.hpp"

#include <fmt/format.h>

#include "tools/inputs/options.hpp"

namespace sextant {

namespace {

bool same_formats(const TrainingSpec& a, const TrainingSpec& b) {
  return a.compute == b.compute && a.parameter == b.parameter && a.gradient == b.gradient &&
         a.reduction == b.reduction && a.optimizer_state == b.optimizer_state;
}

}  // namespace

void use_precision(const std::string& name, const StackSpec& stack, TrainingSpec& t) {
  t.parameter = Dtype::bf16;
  t.compute = name == "fp8" ? Dtype::fp8 : Dtype::bf16;
  const bool pure = name == "bf16-pure";
  t.gradient = t.reduction = pure ? Dtype::bf16 : own_gradient_format(stack, Dtype::bf16);
  t.optimizer_state = pure ? Dtype::bf16 : Dtype::fp32;
}

void default_precision(const DeviceSpec& device, TrainingSpec& training) {
  if (device.peak.contains(Dtype::bf16) || !device.peak.contains(Dtype::fp16)) return;
  training.compute = training.parameter = Dtype::fp16;
}

std::string precision_name(const StackSpec& stack, const TrainingSpec& training) {
  for (const std::string& name : choices(kPrecisions)) {
    TrainingSpec as_named = training;
    use_precision(name, stack, as_named);
    if (same_formats(as_named, training)) return name;
  }
  return "other";
}

std::string precision_text(const StackSpec& stack, const TrainingSpec& t) {
  const std::string name = precision_name(stack, t);
  std::string text = name == "bf16-mixed" ? fmt::format("bf16-mixed, the usual one of {}", stack.name) : name;
  text = name == "other" ? "parameters " : text + ": parameters ";
  text += sextant::name(t.parameter);
  if (size_bytes(t.parameter) < 4) text += " with an fp32 master copy";
  text += fmt::format(", gradients {}, reduced in {}, moments {}", sextant::name(t.gradient),
                      sextant::name(t.reduction), sextant::name(t.optimizer_state));
  if (t.compute != t.parameter) text += fmt::format(", matrix products in {}", sextant::name(t.compute));
  return text;
}

}  // namespace sextant
