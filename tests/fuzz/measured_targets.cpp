// What was measured, and what is learned of it: profiles, calibrations, logs, nccl-tests, events and traces.
#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "core/cluster/cluster_events.hpp"
#include "core/timeline/work_profile.hpp"
#include "planner/calibration/calibration_file.hpp"
#include "planner/calibration/launcher_tags.hpp"
#include "planner/calibration/log_text.hpp"
#include "planner/calibration/nccl_table.hpp"
#include "planner/calibration/run_log.hpp"
#include "tests/fuzz/checks.hpp"
#include "tests/fuzz/targets.hpp"
#include "tools/traces/kernel_names.hpp"
#include "tools/traces/kineto_trace.hpp"

namespace sextant::fuzz {

void work_profile(std::string_view text) {
  WorkProfile profile;
  if (!accepts([&] { profile = parse_json(text, "fuzz").get<WorkProfile>(); })) return;
  for (const auto& [work, measured] : profile.works) {
    SEXTANT_CHECK(work_key(parse_work_key(work)) == work, "a work with two keys");
    SEXTANT_CHECK(measured.mean_us >= 0 && std::isfinite(measured.mean_us), "a time that is none");
  }
  check_round_trip(profile);
}

void calibration_file(std::string_view text) {
  CalibrationFile file;
  if (!accepts([&] { file = parse_json(text, "fuzz").get<CalibrationFile>(); })) return;
  (void)file.settings();
  (void)file.learned();
  for (const RanOut& r : file.out_of_memory) {
    const auto limit = file.memory_limit_GiB(r.stack, r.device);
    SEXTANT_CHECK(limit && *limit > 0 && std::isfinite(*limit), "what ran out of memory limits nothing");
  }
  check_round_trip(file);
}

void run_log(std::string_view text) {
  RunLog log;
  if (!accepts([&] { log = parse_run_log(text, "fuzz"); })) return;
  SEXTANT_CHECK(!log.steps.empty(), "a log without a step");
  // What launchers write before a line may part the words that tell formats.
  const auto tells = [](std::string_view line) { return log_format_of(line).has_value(); };
  SEXTANT_CHECK(log_format_of(without_launcher_tags(in_utf8(text), tells)) == log.format, "of two formats");
  for (const LoggedStep& step : log.steps)
    SEXTANT_CHECK(step.value > 0 && std::isfinite(step.value) && step.line >= 1, "a step without a time");
  ModelSpec model;
  TrainingSpec training;
  ParallelPlan plan;
  if (!accepts([&] { (void)apply_log(log, model, training, plan, {.gpus = 16}); })) return;
  accepts([&] { SEXTANT_CHECK(steady_step(log, training, plan).v > 0, "a step of no time"); });
}

void nccl_table(std::string_view text) {
  NcclTable table;
  if (!accepts([&] { table = parse_nccl_table(text, "fuzz"); })) return;
  SEXTANT_CHECK(table.ranks >= 2 && table.nodes >= 1 && table.nodes <= table.ranks, "ranks");
  SEXTANT_CHECK(table.node_of.size() == static_cast<std::size_t>(table.ranks), "a rank of no node");
  SEXTANT_CHECK(std::ranges::all_of(table.node_of, [&](int n) { return n >= 0 && n < table.nodes; }),
                "nodes of ranks");
  SEXTANT_CHECK(!table.samples.empty(), "a table without sizes");
  for (const NcclSample& sample : table.samples)
    SEXTANT_CHECK(sample.bytes > 0 && sample.time_s > 0 && std::isfinite(sample.time_s), "a size or time");
}

void cluster_events(std::string_view text) {
  ClusterSpec cluster;
  cluster.nodes = 2;
  cluster.node.gpus = 4;
  ClusterEvents events;
  if (!accepts([&] { events = ClusterEvents(text, "fuzz", cluster); })) return;
  for (const ClusterEvent& event : events.events())
    for (const std::int64_t step : {event.from, event.until - 1}) {
      const auto lost = events.lost(step);
      SEXTANT_CHECK(std::ranges::is_sorted(lost) && lost.size() <= 8, "lost GPUs");
      accepts([&] { (void)events.at(cluster, step); });
    }
}

void kineto_trace(std::string_view text) {
  static const KernelNames names(std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets");
  const MemoryFile file(text);
  std::vector<RankTrace> ranks;
  if (!accepts([&] { ranks = read_kineto_trace(file.path(), names); })) return;
  SEXTANT_CHECK(!ranks.empty(), "a trace of no device");
}

}  // namespace sextant::fuzz
