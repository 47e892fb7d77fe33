// Models, plans, clusters, stacks and tables of runs.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/base/csv.hpp"
#include "core/base/json_io.hpp"
#include "core/cluster/cluster_spec.hpp"
#include "core/cluster/topology.hpp"
#include "core/graph/work.hpp"
#include "core/model/model_files.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/plan_file.hpp"
#include "core/plan/plan_limits.hpp"
#include "core/plan/stack_spec.hpp"
#include "core/runs/run_row.hpp"
#include "tests/fuzz/checks.hpp"
#include "tests/fuzz/targets.hpp"

namespace sextant::fuzz {

using nlohmann::json;

void plan_key(std::string_view text) {
  ParallelPlan plan;
  if (!accepts([&] { plan = parse_plan_key(text); })) return;
  const std::string key = sextant::plan_key(plan);
  SEXTANT_CHECK(parse_plan_key(key) == plan, "plan key round trip");
  SEXTANT_CHECK(plan.world() >= 1, "a world of no ranks");
  check_round_trip(plan);
}

void plan_limits(std::string_view text) {
  PlanLimits limits;
  accepts([&] { (void)parse_plan_limits(text, "--fix", /*only_equal=*/true); });
  if (!accepts([&] { limits = parse_plan_limits(text, "--limit"); })) return;
  SEXTANT_CHECK(parse_plan_limits(to_string(limits), "--limit") == limits, "limits round trip");
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
  model.n_layers = 40;
  model.hidden = 5120;
  model.n_heads = model.n_kv_heads = 40;
  model.head_dim = 128;
  model.ffn_hidden = 13824;
  model.vocab_size = 32000;
  if (!validate(plan, model, training).empty()) return;
  SEXTANT_CHECK(parse_plan_key(key) == plan, "a lawful plan has a key");
  const RankGrid grid(plan);
  SEXTANT_CHECK(grid.rank(grid.coord(plan.world() - 1)) == plan.world() - 1, "rank grid");
  int layers = 0;
  for (const auto& range : layer_ranges(plan, model.n_layers)) layers += range.count;
  SEXTANT_CHECK(layers == model.n_layers, "layers lost");
}

void cluster_json(std::string_view text) {
  const auto read = lawful_json<ClusterSpec>(text);
  if (!read) return;
  const ClusterSpec& cluster = *read;
  SEXTANT_CHECK(cluster.gpus() >= 1 && cluster.gpus() <= cluster.nodes * cluster.node.gpus, "GPUs");
  if (cluster.nodes > 16 || cluster.node.gpus > 16) return;
  const Topology topology(cluster);  // every lawful cluster is a graph
  SEXTANT_CHECK(topology.ranks() == cluster.gpus(), "ranks of the graph");
}

void stack_json(std::string_view text) {
  StackSpec stack;
  if (accepts([&] { stack = parse_json(text, "fuzz").get<StackSpec>(); })) check_round_trip(stack);
}

void plan_file(std::string_view text) { (void)lawful_json<PlanFile>(text); }

void runs_csv(std::string_view text) {
  std::vector<RunRow> rows;
  if (!accepts([&] { rows = runs_of(parse_csv(text, "fuzz")); })) return;
  for (const RunRow& r : rows) {
    SEXTANT_CHECK(r.plan.world() == r.nodes * r.gpus_per_node, "ranks");
    SEXTANT_CHECK(r.training.global_batch % (r.plan.micro_batch * r.plan.dp) == 0, "batch");
    SEXTANT_CHECK(parameter_counts(r.model).total > 0, "counts overflow");
  }
}

void set_path(std::string_view text) {
  static const json whole = parse_json(R"({"name": "c", "nodes": 2, "device": {"peak_TFLOPS": {"bf16": 312}},
      "defects": [{"node": 1}, {"node": 0, "gpu": 3}], "rails": true, "spare": null})",
                                       "fuzz");
  const std::size_t equals = std::min(text.find('='), text.size());
  json changed = whole;
  if (!accepts([&] {
        set_json_path(changed, text.substr(0, equals), text.substr(std::min(equals + 1, text.size())));
      }))
    return;
  SEXTANT_CHECK(changed.is_object() && changed.size() >= whole.size(), "a field was lost");
  SEXTANT_CHECK(changed.size() <= whole.size() + 1, "more than one field was added");
}

}  // namespace sextant::fuzz
