#include "planner/calibration/calibrate_memory.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <nlohmann/json.hpp>
#include <nlopt.hpp>
#include <tbb/blocked_range.h>
#include <tbb/parallel_reduce.h>

#include "core/base/annotated.hpp"
#include "core/base/json_io.hpp"
#include "planner/calibration/fit_problem.hpp"

namespace sextant {

namespace {

constexpr auto kMemoryConstant = [](auto& io, auto& c) {
  io.required("key", c.key);
  io.required("prior", c.prior, at_least(0));
  io.required("sigma", c.sigma, at_least(0));
  io.required("low", c.low, at_least(0));
  io.required("high", c.high, at_least(0));
};
constexpr auto kPlan = [](auto& io, auto& p) {
  io.required("stacks", p.stacks);
  io.required("sources", p.sources);
  io.required("constants", p.constants);
  for (const char* about : {"origin", "source", "date"}) io.ignored(about);
};

struct Field {
  std::string_view key;
  double StackMemory::*member;
};
constexpr std::array<Field, 15> kFields = {{
    {"saved_hidden", &StackMemory::saved_hidden},
    {"saved_ffn", &StackMemory::saved_ffn},
    {"saved_rope", &StackMemory::saved_rope},
    {"saved_tp", &StackMemory::saved_tp},
    {"saved_tp_shard", &StackMemory::saved_tp_shard},
    {"attention_scores", &StackMemory::attention_scores},
    {"attention_scores_eager", &StackMemory::attention_scores_eager},
    {"full_recompute_hidden", &StackMemory::full_recompute_hidden},
    {"recompute_share", &StackMemory::recompute_share},
    {"logits_bytes", &StackMemory::logits_bytes},
    {"logits_kept_bytes", &StackMemory::logits_kept_bytes},
    {"loss_gather_bytes", &StackMemory::loss_gather_bytes},
    {"transient_hidden", &StackMemory::transient_hidden},
    {"gradient_bytes", &StackMemory::gradient_bytes},
    {"ddp_extra_bytes", &StackMemory::ddp_extra_bytes},
}};

double StackMemory::*field(const std::string& key) {
  if (key == "fragmentation") return &StackMemory::fragmentation;
  const auto it = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.key == key; });
  if (it == kFields.end())
    throw ConfigError(Problem{"", "key", key, "a memory coefficient of a stack, such as saved_ffn", ""});
  return it->member;
}

double cost_of(MemorySample& s, const MemoryPlan& plan, std::span<const double> x) {
  constexpr double kPeakScale = 0.05;  // relative error that counts one
  for (std::size_t i = 0; i < x.size(); ++i) set_memory_constant(s.tried.memory, plan.constants[i].key, x[i]);
  const MemoryEstimate e = estimate_memory(s.run.model, s.run.training, s.run.plan, s.tried);
  if (s.row->peak_memory_GiB) {
    const double predicted = as_measured(e, s.run.plan, s.run.cluster, s.run.memory_kind);
    return huber((predicted / *s.row->peak_memory_GiB - 1) / kPeakScale);
  }
  const double overflow = chance_of_overflow(e.needed(), s.run.cluster.device.memory);
  const double likelihood = s.row->out_of_memory ? overflow : 1 - overflow;
  return huber(std::sqrt(-2 * std::log(std::max(likelihood, 1e-12))));
}

double objective(std::span<MemorySample> samples, const MemoryPlan& plan, std::span<const double> x) {
  double sum = tbb::parallel_reduce(
      tbb::blocked_range<std::size_t>(0, samples.size()), 0.0,
      [&](const auto& range, double part) {
        for (std::size_t i = range.begin(); i != range.end(); ++i) part += cost_of(samples[i], plan, x);
        return part;
      },
      [](double a, double b) { return a + b; });
  for (std::size_t i = 0; i < x.size(); ++i) {
    const MemoryConstant& c = plan.constants[i];
    if (c.sigma > 0) sum += (x[i] - c.prior) * (x[i] - c.prior) / (c.sigma * c.sigma);
  }
  return sum;
}

}  // namespace

std::vector<MemorySample> memory_samples(std::span<const RunRow> rows, const FrameworkMap& map,
                                         const std::filesystem::path& preset_dir, const MemoryPlan& plan) {
  const auto named = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  std::vector<MemorySample> samples;
  for (const RunRow& row : rows) {
    if (row.quality == 'c' || !named(plan.sources, row.source)) continue;
    if (!row.peak_memory_GiB && !row.out_of_memory && !row.step_time) continue;
    ResolvedRun run = resolve(row, map, preset_dir);
    if (!named(plan.stacks, run.stack.name) || !validate(run.plan, run.model, run.training).empty()) continue;
    samples.push_back({run, &row, run.stack});
  }
  return samples;
}

void from_json(const nlohmann::json& j, MemoryConstant& c) { read_object(j, c, kMemoryConstant); }
void from_json(const nlohmann::json& j, MemoryPlan& p) { read_object(j, p, kPlan); }

namespace {
struct MemoryPlans {
  std::vector<MemoryPlan> plans;
};
constexpr auto kPlans = [](auto& io, auto& p) {
  io.ignored("about");
  io.required("plans", p.plans);
};
void from_json(const nlohmann::json& j, MemoryPlans& p) { read_object(j, p, kPlans); }
}  // namespace

std::vector<MemoryPlan> load_memory_plans(const std::filesystem::path& preset_dir) {
  const auto path = preset_dir / "calibration/memory.json";
  MemoryPlans all;
  with_file(path.string(), [&] { from_json(read_plain_values(path), all); });
  return all.plans;
}

double memory_constant(const StackMemory& m, const std::string& key) {
  return key == "outside_GiB" ? gib(m.outside) : m.*field(key);
}

void set_memory_constant(StackMemory& m, const std::string& key, double value) {
  if (key == "outside_GiB")
    m.outside = Bytes(std::llround(value * 1073741824.0));
  else
    m.*field(key) = value;
}

MemoryFit calibrate_memory(std::span<const RunRow> rows, const FrameworkMap& map,
                           const std::filesystem::path& preset_dir, const MemoryPlan& plan) {
  std::vector<MemorySample> samples = memory_samples(rows, map, preset_dir, plan);
  return calibrate_memory(samples, plan);
}

MemoryFit calibrate_memory(std::span<MemorySample> samples, const MemoryPlan& plan) {
  MemoryFit fit;
  for (const MemorySample& s : samples) ++(s.row->peak_memory_GiB ? fit.peaks : fit.outcomes);
  if (samples.empty() || plan.constants.empty()) return fit;

  const std::size_t n = plan.constants.size();
  std::vector<double> low(n), high(n), step(n), now(n), x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const MemoryConstant& c = plan.constants[i];
    low[i] = c.low;
    high[i] = c.high;
    step[i] = std::max(0.1 * (c.high - c.low), 1e-6);
    now[i] = std::clamp(memory_constant(samples.front().run.stack.memory, c.key), c.low, c.high);
    x[i] = std::clamp(c.prior, c.low, c.high);  // always from the prior: the presets are last time's result
  }
  fit.before = objective(samples, plan, now);

  const auto minimised = [&](std::vector<double> start) {
    nlopt::opt search(nlopt::LN_SBPLX, static_cast<unsigned>(n));
    search.set_lower_bounds(low);
    search.set_upper_bounds(high);
    search.set_initial_step(step);
    search.set_ftol_rel(1e-5);
    search.set_maxeval(static_cast<int>(150 * n));
    struct Search {
      std::span<MemorySample> samples;
      const MemoryPlan& plan;
    } problem{samples, plan};
    search.set_min_objective(
        [](const std::vector<double>& at, std::vector<double>&, void* data) {
          const auto& p = *static_cast<const Search*>(data);
          return objective(p.samples, p.plan, at);
        },
        &problem);
    double value = 0;
    search.optimize(start, value);
    return std::pair(value, start);
  };
  std::tie(fit.after, x) = minimised(x);

  for (std::size_t i = 0; i < n; ++i) {
    // Width of the objective along the coefficient: one unit of it is one sigma squared.
    const MemoryConstant& c = plan.constants[i];
    const double d = std::max(0.02 * (c.high - c.low), 1e-6);
    std::vector<double> up = x, down = x;
    up[i] = std::min(x[i] + d, c.high);
    down[i] = std::max(x[i] - d, c.low);
    const double a = up[i] - x[i], b = x[i] - down[i];
    const double rise = (a > 0 ? (objective(samples, plan, up) - fit.after) / (a * a) : 0) +
                        (b > 0 ? (objective(samples, plan, down) - fit.after) / (b * b) : 0);
    const double curvature = rise / ((a > 0) + (b > 0));
    const double sigma = curvature > 0 ? 1 / std::sqrt(curvature) : c.sigma;
    fit.constants.push_back({c.key, c.prior, x[i], c.sigma > 0 ? std::min(sigma, c.sigma) : sigma});
  }
  return fit;
}

}  // namespace sextant
