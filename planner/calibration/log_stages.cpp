#include "planner/calibration/log_stages.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/plan/megatron_layout.hpp"

namespace sextant {

namespace {

// As a list of chunks in which each of 0 .. chunks - 1 is stated.
std::optional<std::vector<int>> printed_chunks(const RunLog& log, int chunks, int n_layers) {
  std::vector<int> layers;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const auto it = log.chunk_layers.find(chunk);
    if (it == log.chunk_layers.end()) return std::nullopt;
    layers.push_back(it->second >= 0 ? it->second : n_layers + 1 + it->second);
  }
  return layers;
}

struct NamedSchedule {
  std::string_view name;
  PipelineSchedule schedule;
  bool exact;
};
// torch.distributed.pipelining.schedules
constexpr std::array kSchedules = {
    NamedSchedule{"1F1B", PipelineSchedule::one_f_one_b, true},
    NamedSchedule{"GPipe", PipelineSchedule::gpipe, true},
    NamedSchedule{"Interleaved1F1B", PipelineSchedule::interleaved, true},
    NamedSchedule{"LoopedBFS", PipelineSchedule::interleaved, false},
    NamedSchedule{"InterleavedZeroBubble", PipelineSchedule::interleaved, false},
    NamedSchedule{"ZBVZeroBubble", PipelineSchedule::interleaved, false},
    NamedSchedule{"DualPipeV", PipelineSchedule::interleaved, false}};

}  // namespace

std::optional<std::vector<int>> chunks_of_log(const RunLog& log, const ModelSpec& model,
                                              const ParallelPlan& plan) {
  const int chunks = plan.pp * plan.vp, layers = model.n_layers;
  if (plan.pp < 2) return std::nullopt;
  std::optional<std::vector<int>> cut;
  const char* column = "stages";
  const bool embedding = log.said("embedding_as_layer").value_or(0) == 1,
             head = log.said("loss_as_layer").value_or(0) == 1;
  const int first = static_cast<int>(log.said("first_stage_layers").value_or(0)),
            last = static_cast<int>(log.said("last_stage_layers").value_or(0));
  if (!log.pipeline_layout.empty()) {
    cut = layout_layers(log.pipeline_layout), column = "pipeline_model_parallel_layout";
  } else if (embedding || head) {
    cut = accounted_layers(layers, chunks, embedding, head),
    column = "account_for_embedding_in_pipeline_split";
  } else if (first > 0 || last > 0) {
    cut = first_last_layers(layers, plan.pp, plan.vp, first, last);
    column = first > 0 ? "first_stage_layers" : "last_stage_layers";
  } else {
    cut = printed_chunks(log, chunks, layers);
    if (!cut) return std::nullopt;
  }
  if (!cut || static_cast<int>(cut->size()) != chunks ||
      std::accumulate(cut->begin(), cut->end(), 0) != layers)
    throw ConfigError(Problem{log.place_of(column), column,
                              cut ? fmt::format("chunks of {} layers", fmt::join(*cut, ", "))
                                  : std::string("a split that cannot be read"),
                              fmt::format("the {} layers of {} in {} chunks", layers, model.name, chunks),
                              "--model, or the layout, is another run's"});
  const bool equal = std::ranges::all_of(*cut, [&](int n) { return n == cut->front(); });
  return equal ? std::nullopt : cut;
}

std::optional<int> virtual_stages_of_log(const RunLog& log, const ModelSpec& model,
                                         const ParallelPlan& plan) {
  if (plan.pp < 2) return std::nullopt;  // no stages to cut
  if (const std::int64_t n = log.said("stages").value_or(0); n > 0 && n % plan.pp == 0)
    return static_cast<int>(n / plan.pp);
  if (!log.pipeline_layout.empty())
    if (const auto cut = layout_layers(log.pipeline_layout);
        cut && cut->size() % static_cast<std::size_t>(plan.pp) == 0)
      return static_cast<int>(cut->size()) / plan.pp;
  if (const std::int64_t n = log.said("layers_per_chunk").value_or(0); n > 0)
    return std::max(1, static_cast<int>(model.n_layers / (plan.pp * n)));
  if (const std::int64_t n = log.said("virtual_stages").value_or(0); n > 0) return static_cast<int>(n);
  return std::nullopt;
}

std::optional<PipelineSchedule> schedule_of_log(const RunLog& log, std::string* note) {
  if (log.schedule.empty()) return std::nullopt;
  const auto known = std::ranges::find(kSchedules, log.schedule, &NamedSchedule::name);
  const bool found = known != kSchedules.end();
  if ((!found || !known->exact) && note)
    *note = fmt::format("pipeline schedule {}: priced as Interleaved1F1B", log.schedule);
  return found ? known->schedule : PipelineSchedule::interleaved;
}

std::optional<int> guessed_micro_batch(const RunLog& log, const ParallelPlan& plan) {
  if (log.format != LogFormat::torchtitan || plan.pp < 2 || log.says.contains("micro_batch"))
    return std::nullopt;
  const std::int64_t local = log.said("local_batch").value_or(0);
  const bool of_2024 = !log.schedule.empty() && local > 0 && local % plan.pp == 0;
  return of_2024 ? static_cast<int>(local / plan.pp) : 1;
}

std::vector<int> stages_of_peak(const RunLog& log, const ParallelPlan& plan) {
  if (plan.pp < 2 || !log.peak_memory_GiB) return {};
  std::set<int> stages = log.memory_stages;
  const RankGrid grid(plan);
  for (const int rank : log.memory_ranks)
    if (rank >= 0 && rank < plan.world()) stages.insert(grid.coord(rank).pp);
  // torchtitan's script and DeepSpeed show rank 0.
  const bool of_rank_0 = log.format == LogFormat::torchtitan || log.format == LogFormat::deepspeed;
  if (stages.empty() && of_rank_0) stages.insert(0);
  std::erase_if(stages, [&](int stage) { return stage < 0 || stage >= plan.pp; });
  if (static_cast<int>(stages.size()) == plan.pp) return {};
  return {stages.begin(), stages.end()};
}

}  // namespace sextant
