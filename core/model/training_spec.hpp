// How it is trained: sequence, batch, number formats, and the software stack by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/dtype.hpp"
#include "core/base/error.hpp"

namespace sextant {

inline constexpr int kMaxSeqLen = 1 << 27;
inline constexpr int kMaxGlobalBatch = 1 << 24;

struct TrainingSpec {
  int seq_len = 2048;             // tokens per sequence
  int global_batch = 1024;        // sequences per optimizer step
  Dtype compute = Dtype::bf16;    // of the GEMMs
  Dtype parameter = Dtype::bf16;  // resident parameters
  Dtype gradient = Dtype::fp32;   // accumulation
  Dtype reduction = Dtype::fp32;  // on the wire
  Dtype optimizer_state =
      Dtype::fp32;  // each of the two moments; the master copy is fp32 when parameter is not
  std::string stack = "megatron-core";  // name of a software stack preset
  bool operator==(const TrainingSpec&) const = default;
};

std::vector<Problem> validate(const TrainingSpec&);

void to_json(nlohmann::json&, const TrainingSpec&);
void from_json(const nlohmann::json&, TrainingSpec&);

}  // namespace sextant
