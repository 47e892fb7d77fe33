#include "cost_models/constants.hpp"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"

namespace sextant {

namespace {

struct Field {
  const char* key;
  double CostConstants::*member;
};

#define SEXTANT_FIELD(name) \
  Field { #name, &CostConstants::name }
constexpr std::array kFields = {
    SEXTANT_FIELD(time_factor),
    SEXTANT_FIELD(gemm_efficiency),
    SEXTANT_FIELD(gemm_tile_128),
    SEXTANT_FIELD(gemm_tile_64),
    SEXTANT_FIELD(gemm_depth_overhead),
    SEXTANT_FIELD(gemm_misaligned),
    SEXTANT_FIELD(gemm_fp8_relative),
    SEXTANT_FIELD(multiprocessor_TFLOPS),
    SEXTANT_FIELD(memory_efficiency),
    SEXTANT_FIELD(attention_flash1_TFLOPS),
    SEXTANT_FIELD(attention_flash2_TFLOPS),
    SEXTANT_FIELD(attention_flash3_TFLOPS),
    SEXTANT_FIELD(attention_cudnn_TFLOPS),
    SEXTANT_FIELD(attention_triton_TFLOPS),
    SEXTANT_FIELD(attention_multiprocessors),
    SEXTANT_FIELD(attention_half_length),
    SEXTANT_FIELD(attention_half_length_flash1),
    SEXTANT_FIELD(attention_forward_factor),
    SEXTANT_FIELD(attention_backward_factor),
    SEXTANT_FIELD(attention_head_96),
    SEXTANT_FIELD(attention_head_64),
    SEXTANT_FIELD(attention_head_small),
    SEXTANT_FIELD(unfused_misaligned),
    SEXTANT_FIELD(unfused_score_bytes),
    SEXTANT_FIELD(fused_score_bytes),
    SEXTANT_FIELD(pointwise_hidden_passes),
    SEXTANT_FIELD(pointwise_unfused_norm_passes),
    SEXTANT_FIELD(pass_backward_factor),
    SEXTANT_FIELD(pointwise_forward_launches),
    SEXTANT_FIELD(pointwise_backward_launches),
    SEXTANT_FIELD(loss_forward_share),
    SEXTANT_FIELD(loss_forward_launches),
    SEXTANT_FIELD(loss_backward_launches),
    SEXTANT_FIELD(embedding_backward_bytes),
    SEXTANT_FIELD(fp8_passes),
    SEXTANT_FIELD(ring_forward_query_bytes),
    SEXTANT_FIELD(ring_forward_key_bytes),
    SEXTANT_FIELD(ring_forward_launches),
    SEXTANT_FIELD(ring_backward_query_bytes),
    SEXTANT_FIELD(ring_backward_key_bytes),
    SEXTANT_FIELD(ring_backward_launches),
    SEXTANT_FIELD(host_share_norm),
    SEXTANT_FIELD(host_share_qkv),
    SEXTANT_FIELD(host_share_attention),
    SEXTANT_FIELD(host_share_mlp),
    SEXTANT_FIELD(host_smoothing_power),
    SEXTANT_FIELD(host_copy_efficiency),
    SEXTANT_FIELD(host_update_efficiency),
    SEXTANT_FIELD(collective_start_us),
    SEXTANT_FIELD(protocol_base_us),
    SEXTANT_FIELD(collective_skew_us),
    SEXTANT_FIELD(collective_step_us),
    SEXTANT_FIELD(link_efficiency),
    SEXTANT_FIELD(link_efficiency_in_switch),
    SEXTANT_FIELD(link_efficiency_mesh),
    SEXTANT_FIELD(ring_half_ranks),
    SEXTANT_FIELD(network_hops_per_node),
};
#undef SEXTANT_FIELD

static_assert(kFields.size() * sizeof(double) == sizeof(CostConstants), "a constant is missing from kFields");

// Generations whose switches reduce nothing have no rate of that; processors are not one device in several sizes.
bool may_be_absent(double CostConstants::*constant, const std::string& generation) {
  if (constant == &CostConstants::link_efficiency_in_switch) return true;
  return generation == "cpu" && (constant == &CostConstants::multiprocessor_TFLOPS ||
                                 constant == &CostConstants::attention_multiprocessors);
}

std::vector<std::string> known_generations(const std::filesystem::path& dir) {
  std::vector<std::string> out;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ec))
    if (entry.path().extension() == ".json" && entry.path().stem() != "common")
      out.push_back(entry.path().stem().string());
  std::sort(out.begin(), out.end());
  return out;
}

constexpr auto kRecord = [](auto& io, auto& r) {
  io.required("value", r.value, above(0));
  io.optional("low", r.low, above(0));
  io.optional("high", r.high, above(0));
  io.required("unit", r.unit);
  io.required("origin", r.origin);
  io.required("source", r.source);
  io.required("date", r.date);
  io.ignored("note");
};

constexpr auto kFile = [](auto& io, auto& records) {
  io.ignored("about");
  io.ignored("generation");
  io.required("constants", records);
};

using Records = std::map<std::string, ConstantRecord>;

// The constants of one file over those read before.
void overlay(const std::filesystem::path& path, Records& records) {
  Records own;
  const auto keys = constant_keys();
  with_file(path.string(), [&] {
    read_object(read_json_file(path), own, kFile);
    std::vector<Problem> problems;
    for (auto& [key, r] : own) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      const std::string near = closest(key, keys);
      problems.push_back({"", "constants." + key, fmt::format("{}", r.value), "a known constant",
                          near.empty() ? "" : "did you mean " + near + "?"});
    }
    if (!problems.empty()) throw ConfigError(std::move(problems));
  });
  for (auto& [key, r] : own) {
    r.key = key;
    records[key] = std::move(r);
  }
}

}  // namespace

std::vector<Problem> validate(const ConstantRecord& r) {
  std::vector<Problem> problems;
  if (r.low > r.value || r.high < r.value)
    problems.push_back({"", "value", fmt::format("{}", r.value),
                        fmt::format("a value inside its bounds [{}, {}]", r.low, r.high), ""});
  if (r.origin.size() != 1 || std::string_view("TFSDG").find(r.origin) == std::string_view::npos)
    problems.push_back({"", "origin", r.origin, "one of T, F, S, D, G", ""});
  for (const auto& [key, text] : {std::pair{"unit", &r.unit}, {"source", &r.source}, {"date", &r.date}})
    if (text->empty()) problems.push_back({"", key, "", "a text: every constant states it", ""});
  return problems;
}

void from_json(const nlohmann::json& j, ConstantRecord& r) {
  JsonReader reader(j);
  kRecord(reader, r);
  if (!reader.has("low")) r.low = r.value;
  if (!reader.has("high")) r.high = r.value;
  reader.finish(validate(r));
}

std::vector<std::string> constant_keys() {
  std::vector<std::string> keys;
  for (const auto& f : kFields) keys.emplace_back(f.key);
  return keys;
}

double& constant(CostConstants& c, const std::string& key) {
  for (const auto& f : kFields)
    if (key == f.key) return c.*f.member;
  const std::string near = closest(key, constant_keys());
  throw ConfigError(
      Problem{"", key, "", "a constant of the cost model", near.empty() ? "" : "did you mean " + near + "?"});
}

CostPreset load_cost_preset(const std::string& generation, const std::filesystem::path& dir) {
  const auto path = dir / (generation + ".json");
  if (generation == "common" || !std::filesystem::exists(path)) {
    const auto known = known_generations(dir);
    throw ConfigError(Problem{
        dir.string(), "generation", generation,
        known.empty() ? "a directory of cost constants" : fmt::format("one of {}", fmt::join(known, ", ")),
        closest(generation, known).empty() ? "" : "did you mean " + closest(generation, known) + "?"});
  }
  Records records;
  overlay(dir / "common.json", records);
  overlay(path, records);
  std::vector<Problem> problems;
  CostPreset preset;
  preset.generation = generation;
  for (const auto& f : kFields) {
    const auto it = records.find(f.key);
    if (it == records.end() && may_be_absent(f.member, generation)) continue;
    if (it == records.end()) {
      problems.push_back({path.string(), std::string("constants.") + f.key, "",
                          "this constant, here or in common.json", ""});
      continue;
    }
    preset.constants.*f.member = it->second.value;
    preset.records.push_back(it->second);
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return preset;
}

}  // namespace sextant
