#include "tools/inputs/precision.hpp"

#include <array>
#include <string_view>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "tools/inputs/options.hpp"

namespace sextant {

namespace {

bool same_formats(const TrainingSpec& a, const TrainingSpec& b) {
  return a.compute == b.compute && a.parameter == b.parameter && a.gradient == b.gradient &&
         a.reduction == b.reduction && a.optimizer_state == b.optimizer_state;
}

}  // namespace

std::string precision_otherwise(const std::string& word) {
  struct Other {
    std::string_view word, hint;
  };
  static constexpr std::string_view kMixed = "did you mean bf16-mixed, which is usual, or bf16-pure?",
                                    kFp8 = "did you mean fp8? Its GEMMs are fp8, all else is bf16",
                                    kHalf =
                                        "fp16 is --set training.compute=fp16 --set training.parameter=fp16",
                                    kSingle =
                                        "it is --set training.compute=fp32 --set training.parameter=fp32",
                                    kTf32 = "it is --set training.compute=tf32 --set training.parameter=fp32",
                                    kFewer = "GEMMs in less than 8 bits are not planned; fp8 comes nearest";
  static constexpr std::array kOthers = {
      Other{"bf16", kMixed},   Other{"bfloat16", kMixed}, Other{"mixed", kMixed},
      Other{"amp", kMixed},    Other{"bf16amp", kMixed},  Other{"bf16true", "did you mean bf16-pure?"},
      Other{"fp8mixed", kFp8}, Other{"float8", kFp8},     Other{"e4m3", kFp8},
      Other{"hybrid", kFp8},   Other{"mxfp8", kFp8},      Other{"fp8hybrid", kFp8},
      Other{"fp16", kHalf},    Other{"16", kHalf},        Other{"half", kHalf},
      Other{"float16", kHalf}, Other{"16mixed", kHalf},   Other{"fp16mixed", kHalf},
      Other{"fp32", kSingle},  Other{"float32", kSingle}, Other{"32", kSingle},
      Other{"no", kSingle},    Other{"tf32", kTf32},      Other{"fp4", kFewer},
      Other{"nvfp4", kFewer},  Other{"int8", kFewer},     Other{"int4", kFewer},
      Other{"mxfp4", kFewer}};
  const std::string plain = plain_word(word);
  for (const Other& other : kOthers)
    if (plain == other.word) return std::string(other.hint);
  return "";
}

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
  if (size_bytes(t.parameter) < 4)
    text += stack.rules.shards_are_master ? " gathered from fp32 shards, the master copy"
                                          : " with an fp32 master copy";
  text += fmt::format(", gradients {}, reduced in {}, moments {}", sextant::name(t.gradient),
                      sextant::name(t.reduction), sextant::name(t.optimizer_state));
  if (t.compute != t.parameter) text += fmt::format(", GEMMs in {}", sextant::name(t.compute));
  return text;
}

}  // namespace sextant
