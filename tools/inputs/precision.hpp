// Number formats by the names that people use for them.
#pragma once

#include <string>

#include "core/cluster/cluster_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

// What frameworks and people call formats, and here is called otherwise: a hint. Empty: not known.
std::string precision_otherwise(const std::string& word);

inline constexpr const char* kPrecisions = "bf16-mixed|bf16-pure|fp8";

// bf16-mixed: bf16 with the stack's own gradients and fp32 moments. bf16-pure: gradients, their reduction and both moments in bf16
// too. fp8: as bf16-mixed, GEMMs in fp8. All with the fp32 master copy of the parameters that every stack here keeps.
void use_precision(const std::string& name, const StackSpec&, TrainingSpec&);

// 16-bit training is bf16, where the device has it.
void default_precision(const DeviceSpec&, TrainingSpec&);

// "bf16-mixed, the usual one of torchtitan: parameters bf16 gathered from fp32 shards, the master copy, gradients fp32, reduced in
// fp32, moments fp32".
std::string precision_text(const StackSpec&, const TrainingSpec&);

// "bf16-mixed", "bf16-pure", "fp8", or "other" where the formats are none of these.
std::string precision_name(const StackSpec&, const TrainingSpec&);

}  // namespace sextant
