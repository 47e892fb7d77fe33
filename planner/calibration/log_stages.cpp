#include "planner/calibration/log_stages.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/plan/megatron_layout.hpp"
#include "core/plan/plan_key.hpp"
#include "core/plan/stage_cuts.hpp"

namespace sextant {

namespace {

// Of torchtitan's, each of 0 .. chunks - 1 that is stated; -1: it is not.
std::vector<int> printed_chunks(const RunLog& log, int chunks, int n_layers) {
  std::vector<int> layers(static_cast<std::size_t>(chunks), -1);
  if (static_cast<int>(log.split_points.size()) == chunks - 1) {
    int first = 0;
    for (int i = 0; i < chunks; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const int end = i + 1 < chunks ? log.split_points[at] : n_layers;
      layers[at] = end - first;
      first = end;
    }
    return layers;
  }
  for (const auto& [chunk, count] : log.chunk_layers)
    if (chunk < chunks) layers[static_cast<std::size_t>(chunk)] = count >= 0 ? count : n_layers + 1 + count;
  return layers;
}

// generate_split_points until April 2025: what does not divide goes behind the first chunk (pytorch/torchtitan 8b737fe3c^,
// distributed/pipeline.py).
std::vector<int> behind_the_first(int n_layers, int chunks) {
  std::vector<int> out(static_cast<std::size_t>(chunks), n_layers / chunks);
  int extra = n_layers % chunks;
  for (std::size_t i = 1; i + 1 < out.size() && extra > 0; ++i, --extra) ++out[i];
  out.back() += extra;
  return out;
}

// torchtitan's own cuts that agree with what is printed, or what is printed and the rest dealt evenly.
std::optional<LogCut> usual_cut(const RunLog& log, int chunks, int n_layers) {
  const std::vector<int> printed = printed_chunks(log, chunks, n_layers);
  const auto missing = std::ranges::count(printed, -1);
  if (missing == 0) return LogCut{printed, ""};
  const bool of_2024 = log.counts_words || (!log.schedule.empty() && !log.says.contains("stages"));
  std::vector<std::optional<std::vector<int>>> own = {cut_with_ends(n_layers, chunks, 1, 1),
                                                      cut_with_ends(n_layers, chunks, 0, 0)};
  if (of_2024) own = {behind_the_first(n_layers, chunks)};
  const auto agrees = [&](const std::vector<int>& cut) {
    return std::ranges::equal(cut, printed, [](int layers, int said) { return said < 0 || layers == said; });
  };
  for (const auto& cut : own)
    if (cut && agrees(*cut))
      return LogCut{*cut, fmt::format("stages of {} layers, as torchtitan{} cuts {} by itself{}",
                                      cut_text(*cut), of_2024 ? " of 2024" : "", n_layers,
                                      cut == own.front() ? "" : " where the ends count as no layer")};
  const int said = std::accumulate(printed.begin(), printed.end(), 0) + static_cast<int>(missing),
            rest = n_layers - said;
  if (rest < 0) return std::nullopt;
  std::vector<int> cut = printed;
  int extra = rest % static_cast<int>(missing);
  for (int& layers : cut)
    if (layers < 0) layers = rest / static_cast<int>(missing) + (extra-- > 0 ? 1 : 0);
  std::string text = cut_text(cut);
  return LogCut{std::move(cut),
                fmt::format("stages of {} layers: those that are printed, and the rest dealt evenly", text)};
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

std::optional<LogCut> chunks_of_log(const RunLog& log, const ModelSpec& model, const ParallelPlan& plan) {
  const int chunks = plan.pp * plan.vp, layers = model.n_layers;
  if (plan.pp < 2) return std::nullopt;
  std::string assumed;
  std::optional<std::vector<int>> cut;
  const char* column = "stages";
  const bool embedding = log.said("embedding_as_layer").value_or(0) == 1,
             head = log.said("loss_as_layer").value_or(0) == 1;
  const int first = static_cast<int>(log.said("first_stage_layers").value_or(0)),
            last = static_cast<int>(log.said("last_stage_layers").value_or(0));
  if (!log.pipeline_layout.empty()) {
    cut = layout_layers(log.pipeline_layout);
    column = "pipeline_model_parallel_layout";
  } else if (embedding || head) {
    cut = accounted_layers(layers, chunks, {.embedding = embedding, .head = head});
    column = "account_for_embedding_in_pipeline_split";
  } else if (first > 0 || last > 0) {
    cut = first_last_layers(layers, plan.pp, plan.vp, first, last);
    column = first > 0 ? "first_stage_layers" : "last_stage_layers";
  } else if (log.format == LogFormat::torchtitan) {
    const auto own = usual_cut(log, chunks, layers);
    if (own) {
      cut = own->layers;
      assumed = own->assumed;
    }
  } else {
    return std::nullopt;
  }
  if (!cut || static_cast<int>(cut->size()) != chunks ||
      std::accumulate(cut->begin(), cut->end(), 0) != layers)
    throw ConfigError(Problem{log.place_of(column), column,
                              cut ? fmt::format("chunks of {} layers", fmt::join(*cut, ", "))
                                  : std::string("a split that cannot be read"),
                              fmt::format("the {} layers of {} in {} chunks", layers, model.name, chunks),
                              "--model, or the layout, is another run's"});
  return LogCut{*std::move(cut), std::move(assumed)};
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
  // torchtitan until January 2025: by its split, or by the stages that a rank builds.
  if (const std::size_t n = log.split_points.size() + 1; n > 1 && n % static_cast<std::size_t>(plan.pp) == 0)
    return static_cast<int>(n) / plan.pp;
  if (!log.chunk_layers.empty()) return log.chunk_layers.rbegin()->first / plan.pp + 1;
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

namespace {

// Those of the processes that wrote lines with these tags. torchrun counts the ranks of its node: of one that is not named the first is
// taken, whose output most logs are.
std::set<int> stages_of_tags(const RunLog& log, const ParallelPlan& plan, int node_gpus) {
  const RankGrid grid(plan);
  const int nodes = (plan.world() + node_gpus - 1) / node_gpus;
  std::set<int> out;
  const auto add = [&](int first, int count) {
    for (int rank = first; rank < std::min(first + count, plan.world()); ++rank)
      if (const int stage = grid.coord(rank).pp; !log.peak_without_loss || stage + 1 < plan.pp)
        out.insert(stage);
  };
  for (const LineTag& tag : log.memory_tags) {
    // A number is that of a node where no more are seen than there are nodes.
    const bool of_nodes = log.tasks <= nodes;
    const auto machine = tag.machine ? tag.machine : of_nodes ? tag.task : std::nullopt;
    if (tag.task && !machine)
      add(*tag.task, 1);
    else if (tag.local)
      add(machine.value_or(0) * node_gpus + *tag.local, 1);
    else if (machine)
      add(*machine * node_gpus, node_gpus);
  }
  return out;
}

}  // namespace

std::vector<int> stages_of_peak(const RunLog& log, const ParallelPlan& plan, int node_gpus) {
  if (plan.pp < 2 || !log.peak_memory_GiB) return {};
  std::set<int> stages = log.memory_stages;
  const RankGrid grid(plan);
  for (const int rank : log.memory_ranks)
    if (rank >= 0 && rank < plan.world()) stages.insert(grid.coord(rank).pp);
  if (stages.empty()) stages = stages_of_tags(log, plan, std::max(1, node_gpus));
  // torchtitan's script and DeepSpeed show rank 0.
  const bool of_rank_0 = log.format == LogFormat::torchtitan || log.format == LogFormat::deepspeed;
  if ((stages.empty() && of_rank_0) ||
      (log.peak_without_loss && log.memory_tags.empty() && log.chunk_layers.empty()))
    stages.insert(0);
  std::erase_if(stages, [&](int stage) { return stage < 0 || stage >= plan.pp; });
  if (static_cast<int>(stages.size()) == plan.pp) return {};
  return {stages.begin(), stages.end()};
}

}  // namespace sextant
