#include "core/model/training_spec.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/json_io.hpp"

namespace sextant {
namespace {

constexpr auto kTrainingFields = [](auto& io, auto& t) {
  io.optional("seq_len", t.seq_len);
  io.optional("global_batch", t.global_batch);
  io.optional("compute", t.compute, kDtypeNames);
  io.optional("parameter", t.parameter, kDtypeNames);
  io.optional("gradient", t.gradient, kDtypeNames);
  io.optional("reduction", t.reduction, kDtypeNames);
  io.optional("optimizer_state", t.optimizer_state, kDtypeNames);
  io.optional("stack", t.stack);
};

}  // namespace

std::vector<Problem> validate(const TrainingSpec& t) {
  std::vector<Problem> problems;
  const auto require = [&](bool holds, const char* key, auto value, std::string expected) {
    if (!holds) problems.push_back({"", key, fmt::format("{}", value), std::move(expected), ""});
  };
  require(t.seq_len >= 1 && t.seq_len <= kMaxSeqLen, "seq_len", t.seq_len,
          fmt::format("from 1 to {} tokens", kMaxSeqLen));
  require(t.global_batch >= 1 && t.global_batch <= kMaxGlobalBatch, "global_batch", t.global_batch,
          fmt::format("from 1 to {} sequences", kMaxGlobalBatch));
  const auto one_of = [&](const char* key, Dtype d, std::initializer_list<Dtype> allowed,
                          const char* expected) {
    require(std::find(allowed.begin(), allowed.end(), d) != allowed.end(), key, name(d), expected);
  };
  using enum Dtype;
  one_of("parameter", t.parameter, {fp16, bf16, fp32, fp64}, "fp16, bf16, fp32 or fp64");
  one_of("gradient", t.gradient, {fp16, bf16, fp32, fp64}, "fp16, bf16, fp32 or fp64");
  one_of("reduction", t.reduction, {fp8, fp16, bf16, fp32, fp64}, "fp8, fp16, bf16, fp32 or fp64");
  one_of("optimizer_state", t.optimizer_state, {fp8, fp16, bf16, fp32, fp64},
         "fp8, fp16, bf16, fp32 or fp64");
  require(!t.stack.empty(), "stack", "''", "the name of a software stack");
  return problems;
}

void to_json(nlohmann::json& j, const TrainingSpec& t) { write_object(j, t, kTrainingFields); }
void from_json(const nlohmann::json& j, TrainingSpec& t) { read_object(j, t, kTrainingFields); }

}  // namespace sextant
