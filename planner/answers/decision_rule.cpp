#include "planner/answers/decision_rule.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/annotated.hpp"
#include "core/base/json_io.hpp"

namespace sextant {

namespace {

constexpr auto kDecisionFields = [](auto& io, auto& rule) {
  io.ignored("about");
  io.required("most_oom_chance", rule.most_oom_chance, between(0, 1));
  io.required("optimism", rule.optimism, at_least(0));
  io.required("extrapolation", rule.extrapolation, at_least(1));
  io.required("extrapolation_per_doubling", rule.extrapolation_per_doubling, at_least(1));
  io.required("told_apart", rule.told_apart, at_least(0));
  io.required("feature_pays", rule.feature_pays, at_least(0));
  io.required("most_given_up", rule.most_given_up, at_least(0));
  io.required("host_room_pays", rule.host_room_pays, at_least(0));
};

}  // namespace

DecisionRule load_decision_rule(const std::filesystem::path& preset_dir) {
  const auto path = preset_dir / "calibration/decision.json";
  DecisionRule rule;
  with_file(path.string(), [&] { read_object(read_plain_values(path), rule, kDecisionFields); });
  return rule;
}

bool empty_chunk(const ParallelPlan& p) {
  return std::ranges::any_of(p.chunks, [](const LayerRange& c) { return c.count == 0; });
}

bool equal_stages(const ParallelPlan& p, int n_layers) {
  if (equal_chunks(p, n_layers)) return true;
  const std::vector<LayerRange> chunks = layer_ranges(p, n_layers);
  if (chunks.size() <= 2) return false;
  const int inner = chunks[1].count;
  return chunks.front().count == inner - 1 && chunks.back().count == inner - 1 &&
         std::all_of(chunks.begin() + 1, chunks.end() - 1,
                     [&](const LayerRange& c) { return c.count == inner; });
}

std::vector<std::string> unusual_features(const ParallelPlan& p, int n_layers, const ClusterSpec& cluster,
                                          const StackCapabilities& can) {
  const ParallelPlan usual;
  std::vector<std::string> out;
  const auto add = [&](bool is_so, const char* what) {
    if (is_so) out.emplace_back(what);
  };
  // One switch, where the framework has none for either alone (FSDP's CPUOffload).
  const bool both = p.optimizer_offload > 0 && p.parameter_offload &&
                    can.optimizer_offload_needs_parameters && can.parameter_offload_needs_optimizer;
  add(both, "CPU offload");
  add(!both && p.optimizer_offload > 0, "optimizer offload");
  add(!both && p.parameter_offload, "parameter offload");
  add(p.activation_offload > 0, "activation offload");
  const bool by_rule = p.pp > 1 && cuts_by_rule(can.uneven_stages, p.vp);  // nobody chose it
  const bool equal = by_rule || equal_stages(p, n_layers);
  add(equal && empty_chunk(p) && can.usual_end_layers == 0, "embedding and head alone in a chunk");
  add(!equal, "uneven stages");
  add(p.tp > cluster.node.gpus * cluster.node.domain_nodes, "TP across nodes");
  add(p.schedule == PipelineSchedule::gpipe || p.schedule == PipelineSchedule::zero_bubble,
      "an unusual pipeline schedule");
  add(p.bucket_elements != usual.bucket_elements || p.last_bucket_split != usual.last_bucket_split,
      "its own bucket size");
  add(!same_order(p, can.usual_order()), "its own order of axes");
  if ((p.tp > 1 || p.cp > 1) && p.zero_stage > can.advised_zero_with_tp)
    out.push_back(fmt::format("ZeRO-{} beside {} (the framework advises against it)", p.zero_stage,
                              p.tp > 1 ? "TP" : "CP"));
  return out;
}

Judged judged(const ParallelPlan& p, int n_layers, const ClusterSpec& cluster, const StackCapabilities& can) {
  Judged out;
  out.offered = !empty_chunk(p) || equal_stages(p, n_layers);
  out.unusual = static_cast<int>(unusual_features(p, n_layers, cluster, can).size());
  out.kinds = (p.tp > 1 ? 1 : 0) + (p.cp > 1 ? 1 : 0) + (p.pp > 1 ? 1 : 0) +
              (p.optimizer_offload > 0 && p.optimizer_offload < 1 ? 1 : 0);
  return out;
}

double decision_cost(const Judged& x, const DecisionRule& rule) {
  const double wider = std::pow(rule.extrapolation, static_cast<int>(x.like_runs)) *
                       std::pow(rule.extrapolation_per_doubling, x.doublings);
  return std::log(x.step) + rule.optimism * std::log1p(x.half_width * wider);
}

bool surely_fits(const Judged& x, const DecisionRule& rule) {
  return x.offered && x.oom_chance < rule.most_oom_chance;
}

bool asks_for_room(std::span<const Judged> layouts, const DecisionRule& rule) {
  double fastest = INFINITY, roomy = INFINITY;
  for (const Judged& x : layouts) {
    if (!surely_fits(x, rule)) continue;
    fastest = std::min(fastest, x.step);
    if (x.room_on_host) roomy = std::min(roomy, x.step);
  }
  return roomy <= fastest * (1 + rule.host_room_pays);
}

double must_gain(const Judged& unusual, const Judged& usual, const DecisionRule& rule) {
  if (unusual.like_runs == LikeRuns::of_family) return rule.feature_pays;
  return std::max(rule.feature_pays, std::hypot(unusual.half_width, usual.half_width));
}

std::size_t recommended(std::span<const Judged> layouts, const DecisionRule& rule) {
  std::vector<std::size_t> some;
  const auto keep = [&](const auto& admits) {
    some.clear();
    for (std::size_t i = 0; i < layouts.size(); ++i)
      if (admits(layouts[i])) some.push_back(i);
    return !some.empty();
  };
  const bool room = asks_for_room(layouts, rule);
  const bool safe = keep([&](const Judged& x) { return surely_fits(x, rule) && (x.room_on_host || !room); });
  if (!safe && !keep([](const Judged& x) { return x.offered; })) keep([](const Judged&) { return true; });
  if (!safe) {  // none is safe: the least risky
    const auto least = std::ranges::min(some, {}, [&](std::size_t i) { return layouts[i].oom_chance; });
    const double limit = layouts[least].oom_chance;
    std::erase_if(some, [&](std::size_t i) { return layouts[i].oom_chance > limit; });
  }
  const auto step = [&](std::size_t i) { return layouts[i].step; };
  for (bool paid = true; paid;) {  // what is unusual must pay, and what is more unusual once more
    const int fewest =
        layouts[std::ranges::min(some, {}, [&](std::size_t i) { return layouts[i].unusual; })].unusual;
    const auto is_unusual = [&](std::size_t i) { return layouts[i].unusual > fewest; };
    const std::size_t usual = *std::ranges::min_element(
        some, {}, [&](std::size_t i) { return is_unusual(i) ? INFINITY : step(i); });
    const auto pays = [&](std::size_t i) {
      const double gain = must_gain(layouts[i], layouts[usual], rule);
      return is_unusual(i) && step(i) * (1 + gain) < step(usual);
    };
    std::vector<std::size_t> paying;
    std::ranges::copy_if(some, std::back_inserter(paying), pays);
    // With fewer features as good as one that pays.
    const auto stands_for_one = [&](std::size_t i) {
      return is_unusual(i) && std::ranges::any_of(paying, [&](std::size_t j) {
               return layouts[i].unusual < layouts[j].unusual && step(i) <= step(j) * (1 + rule.told_apart);
             });
    };
    paid = !paying.empty();
    std::erase_if(some, [&](std::size_t i) { return paid ? !pays(i) && !stands_for_one(i) : is_unusual(i); });
  }
  const double fastest = layouts[std::ranges::min(some, {}, step)].step;
  std::erase_if(some, [&](std::size_t i) { return step(i) > fastest * (1 + rule.most_given_up); });
  const auto cost = [&](std::size_t i) { return decision_cost(layouts[i], rule); };
  const double least = cost(std::ranges::min(some, {}, cost));
  std::erase_if(some, [&](std::size_t i) { return cost(i) > least + std::log1p(rule.told_apart); });
  return std::ranges::min(some, {}, [&](std::size_t i) {
    return std::tuple(layouts[i].unusual, layouts[i].kinds, !layouts[i].well_known, cost(i), i);
  });
}

}  // namespace sextant
