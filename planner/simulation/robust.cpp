#include "planner/simulation/robust.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <boost/math/special_functions/erf.hpp>

#include "core/plan/plan_links.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/simulation/simulate.hpp"

namespace sextant {
namespace {

double normal_quantile(double u) { return std::sqrt(2.0) * boost::math::erf_inv(2.0 * u - 1.0); }

// Lognormal of mean 1.
double lognormal(double z, double sigma) { return std::exp(sigma * z - 0.5 * sigma * sigma); }

class Uniform {
 public:
  explicit Uniform(std::uint64_t seed) : engine_(seed) {}
  // Inside (0, 1), the same on every platform.
  double next() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

// The group of a collective or transfer that leaves the node, or nothing.
const GroupShape* network_group(const Work& work) {
  const GroupShape* group = nullptr;
  if (const auto* c = std::get_if<CollectiveWork>(&work)) group = &c->group;
  if (const auto* t = std::get_if<TransferWork>(&work)) group = &t->link;
  return group && group->nodes > 1 ? group : nullptr;
}

}  // namespace

RobustStep robust_step(const Job& job, const ParallelPlan& plan, const JitterSpec& jitter,
                       const RobustOptions& options) {
  const FoldedGraph graph =
      lower_folded(job.model, job.training, plan_links(job.topology, plan), plan, job.stack);
  const std::vector<OpCost> steady = price(graph, job.cost);
  const SimulateOptions base = simulate_options(job, plan);
  const double ranks = static_cast<double>(plan.world()) / plan.pp;
  Uniform uniform(options.seed);
  SimulateScratch scratch;
  std::vector<double> steps;
  for (int sample = 0; sample < options.samples; ++sample) {
    SimulateOptions now = base;
    now.stage_compute_factor.resize(static_cast<std::size_t>(plan.pp), 1.0);
    // The slowest of n equal ranks: its quantile is u^(1/n).
    for (std::size_t stage = 0; stage < now.stage_compute_factor.size(); ++stage) {
      const double u = std::pow(uniform.next(), 1.0 / ranks);
      if (jitter.compute_sigma <= 0) continue;
      const double slower = lognormal(normal_quantile(std::min(u, 1.0 - 1e-16)), jitter.compute_sigma);
      now.stage_compute_factor[stage] *= slower;
      if (!now.stage_update_factor.empty()) now.stage_update_factor[stage] *= slower;
    }
    const double z = normal_quantile(uniform.next());
    std::vector<OpCost> costs = steady;
    if (jitter.network_sigma > 0)
      for (std::size_t w = 0; w < costs.size(); ++w)
        if (network_group(graph.works[w])) {
          const Seconds slower = costs[w].memory * (1.0 / lognormal(z, jitter.network_sigma) - 1.0);
          costs[w].memory += slower;
          costs[w].duration += slower;
        }
    steps.push_back(measured_step(job, plan, simulated_step(graph, costs, now, scratch)).v);
  }
  std::sort(steps.begin(), steps.end());
  const auto quantile = [&](double q) {
    return steps[static_cast<std::size_t>(std::ceil(q * static_cast<double>(steps.size()))) - 1];
  };
  RobustStep out;
  out.samples = options.samples;
  if (steps.empty()) return out;
  out.mean = Seconds(std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size()));
  out.p05 = Seconds(quantile(0.05));
  out.p50 = Seconds(quantile(0.5));
  out.p90 = Seconds(quantile(0.9));
  out.p95 = Seconds(quantile(0.95));
  return out;
}

Prediction expected(const Prediction& undisturbed, const RobustStep& sampled) {
  Prediction p = undisturbed;
  p.jitter = JitteredStep{undisturbed.step, sampled.p05, sampled.p90, sampled.p95, sampled.samples};
  p.step = std::max(undisturbed.step, sampled.mean);
  const double slower = p.step / undisturbed.step;
  for (double* rate : {&p.tokens_per_s, &p.tokens_per_s_gpu, &p.model_tflops_gpu, &p.mfu, &p.mfu_causal})
    *rate /= slower;
  p.exposed_share /= slower;
  p.usd_per_million_tokens *= slower;
  set_step_interval(p, undisturbed.step_upper / undisturbed.step - 1);
  return p;
}

Prediction predict_under(const Job& job, const ParallelPlan& plan, RankBy by) {
  Prediction undisturbed = predict(job, plan);
  const JitterSpec& jitter = job.cluster.jitter;
  if (by == RankBy::undisturbed || jitter == JitterSpec{}) return undisturbed;
  return expected(undisturbed, robust_step(job, plan, jitter));
}

}  // namespace sextant
