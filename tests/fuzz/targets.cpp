#include "tests/fuzz/targets.hpp"

#include <nlohmann/json.hpp>

#include "core/json_io.hpp"
#include "core/model_files.hpp"
#include "core/parallel_plan.hpp"
#include "core/work.hpp"

namespace sextant::fuzz {
namespace {

using nlohmann::json;

// True when `read` accepts; bad input is refused with ConfigError and nothing else.
template <class Read>
bool accepts(Read read) {
  try {
    read();
    return true;
  } catch (const ConfigError& e) {
    SEXTANT_CHECK(!e.problems().empty() && e.what()[0] != '\0', "an error without words");
    return false;
  }
}

// Written and read again, a value is the same.
template <class T>
void check_round_trip(const T& value) {
  SEXTANT_CHECK(parse_json(json(value).dump(), "again").get<T>() == value, "JSON round trip");
}

}  // namespace

void plan_key(std::string_view text) {
  ParallelPlan plan;
  if (!accepts([&] { plan = parse_plan_key(text); })) return;
  const std::string key = sextant::plan_key(plan);
  SEXTANT_CHECK(parse_plan_key(key) == plan, "plan key round trip");
  SEXTANT_CHECK(plan.world() >= 1, "a world of no ranks");
  check_round_trip(plan);
}

void work_key(std::string_view text) {
  Work work;
  if (!accepts([&] { work = parse_work_key(text); })) return;
  const std::string key = sextant::work_key(work);
  SEXTANT_CHECK(parse_work_key(key) == work, "work key round trip");
  SEXTANT_CHECK(sextant::work_key(parse_work_key(key)) == key, "a work with two keys");
}

void model_json(std::string_view text) {
  ModelSpec model;
  if (!accepts([&] { model = model_from_json(parse_json(text, "fuzz"), "fuzz"); })) return;
  SEXTANT_CHECK(validate(model).empty(), "an unlawful model was accepted");
  SEXTANT_CHECK(parameter_counts(model).total > 0 && matmul_parameters(model) > 0, "counts overflow");
  check_round_trip(model);
}

void plan_json(std::string_view text) {
  json j;
  if (!accepts([&] { j = parse_json(text, "fuzz"); })) return;
  ParallelPlan plan;
  TrainingSpec training;
  if (accepts([&] { training = j.get<TrainingSpec>(); })) check_round_trip(training);
  if (!accepts([&] { plan = j.get<ParallelPlan>(); })) return;
  check_round_trip(plan);
  const std::string key = sextant::plan_key(plan);
  ModelSpec model;
  model.n_layers = 40, model.hidden = 5120, model.n_heads = model.n_kv_heads = 40, model.head_dim = 128;
  model.ffn_hidden = 13824, model.vocab_size = 32000;
  if (!validate(plan, model, training).empty()) return;
  SEXTANT_CHECK(parse_plan_key(key) == plan, "a lawful plan has a key");
  const RankGrid grid(plan);
  SEXTANT_CHECK(grid.rank(grid.coord(plan.world() - 1)) == plan.world() - 1, "rank grid");
  int layers = 0;
  for (const auto& range : layer_ranges(plan, model.n_layers)) layers += range.count;
  SEXTANT_CHECK(layers == model.n_layers, "layers lost");
}

}  // namespace sextant::fuzz
