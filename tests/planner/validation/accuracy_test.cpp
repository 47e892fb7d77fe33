// Holds the accuracy of predictions on published runs, per source: step time (mean absolute, median and signed error, 90th
// percentile, in percent; Kendall's tau and regret over groups), peak memory, out of memory, coverage of the 90 % intervals. In-sample: the constants were fitted to these rows; what a
// newcomer sees is preset_fits_test.cpp's. A change that worsens a figure moves its bound here and says why in its commit
// message.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "planner/validation/validate.hpp"
#include "tests/support/measured.hpp"

namespace sextant {
namespace {

// Of one source: errors at most, Kendall's tau at least, regrets at most (the first, and the best of three), and the share of
// times and of peaks inside their intervals, at least; -1 where it has no groups or peaks.
struct Bound {
  const char* source;
  double mape, median, bias, p90;
  double tau, regret, regret_of_3;
  double covered, peaks_covered;
};

// Runs that no plan can say: 28 layers on 32 stages, whose framework counts embedding and head as blocks (nt-1323).
int stages_without_layers(std::string_view source) { return source == "nanotron" ? 1 : 0; }

// Every measured run and its prediction: made once for the tests below, which are one suite for that.
struct AllRuns {
  std::vector<RunRow> rows = test::all_runs();
  std::vector<RunPrediction> predictions =
      predict_runs(rows, load_framework_map(test::preset_dir()), {test::preset_dir(), nullptr, {}});
  std::vector<SourceScore> scores = score_runs(rows, predictions);
};
const AllRuns& all_runs() {
  static const AllRuns all;
  return all;
}
const SourceScore& score_of(std::string_view source) {
  static const SourceScore none;
  const auto& scores = all_runs().scores;
  const auto found = std::ranges::find(scores, source, &SourceScore::source);
  EXPECT_NE(found, scores.end()) << source << " has no rows";
  return found == scores.end() ? none : *found;
}

// In 2026-11 the table grew by 597 rows (torchtitan, Megatron-Bridge, NeMo, B200, InternEvo, nanotron at 128 GPUs): the
// constants serve six more sources now, and some older ones are a little further off than before. Where torchtitan's eager runs are
// told from compiled ones and DeepSpeed's gradients are on the host, its mean error falls from 7.8 to 6.6 % and that of all from 4.5 to
// 4.4; FSDP's state is 2 bytes a parameter less. Of torchtitan's 37 runs 33 lie inside their intervals, which hold nine of ten of a class
// of all sources together.
constexpr Bound kBounds[] = {{"aleph_alpha", 4.8, 3.8, 1.3, 10, 0.73, 3, 1.9, 0.92, -1},
                             {"bigscience_bloom_a100", 4.2, 2.9, 1.2, 8.2, 0.56, 2.7, 0.2, 0.94, 0.92},
                             {"bigscience_v100", 6.8, 5.4, 2.2, 9.3, 0.8, 0.1, 0.1, 0.9, 0.9},
                             {"deepspeed", 7.2, 6, 1.5, 18.5, 0.95, 0.1, 0.1, 0.9, -1},
                             {"flagperf", 4.3, 3.5, 2.8, 8.0, 0.8, 0.1, 0.1, 0.95, 0.85},
                             {"internevo", 3.8, 3.2, 2.5, 8, 0.8, 2, 0.1, 0.95, -1},
                             {"llm_foundry", 4.5, 3.6, 0.7, 9, -1, 0, 0, 0.93, -1},
                             {"megatron_llama", 4.5, 4.6, 2.3, 7.2, -1, 0, 0, 0.85, -1},
                             {"megatron_lm", 4.5, 3.2, 3.0, 12.4, -1, 0, 0, 0.9, -1},
                             {"modalities", 6.1, 3.8, 1.4, 12.6, 0.8, 0.6, 0.1, 0.88, -1},
                             {"nanotron", 7.1, 4.3, 0.7, 16.3, 0.78, 5.9, 0.4, 0.88, 0.9},
                             {"nvidia_dgxc", 3.8, 2.5, 1.3, 8.7, -1, 0, 0, 0.91, -1},
                             {"nvidia_megatron_bridge", 5.2, 4.2, 1.3, 9, 0.55, 0.1, 0.1, 0.92, 0.75},
                             {"nvidia_nemo", 4.2, 3.6, 3.4, 7.2, -1, 0, 0, 0.95, -1},
                             {"simumax_b200", 4.4, 4.0, 2.6, 8, 0.8, 0.3, 0.1, 0.95, 0.85},
                             {"torchtitan", 6.8, 6, 1.4, 13, -1, 0, 0, 0.89, 0.8}};

TEST(Accuracy, EverySourceKeepsItsFigures) {
  SEXTANT_NEEDS_MEASURED();
  for (const Bound& bound : kBounds) {
    SCOPED_TRACE(bound.source);
    const SourceScore& s = score_of(bound.source);
    EXPECT_EQ(s.unpredicted, stages_without_layers(bound.source));
    EXPECT_LE(s.mape, bound.mape);
    EXPECT_LE(s.median, bound.median);
    EXPECT_LE(std::abs(s.bias), bound.bias);
    EXPECT_LE(s.p90, bound.p90);
    EXPECT_EQ(s.groups > 0, bound.tau >= 0);
    if (s.groups > 0) {
      EXPECT_GE(s.kendall_tau, bound.tau);
      EXPECT_LE(s.regret_1, bound.regret);
      EXPECT_LE(s.regret_3, bound.regret_of_3);
    }
    EXPECT_GE(static_cast<double>(s.covered) / s.rows, bound.covered);
    EXPECT_EQ(s.memory_rows > 0, bound.peaks_covered >= 0);
    if (s.memory_rows > 0) {
      EXPECT_GE(static_cast<double>(s.memory_covered) / s.memory_rows, bound.peaks_covered);
    }
  }
}

struct MemoryBound {
  const char* source;
  double mape;
  double precision, recall;  // of "does not fit", at least
};

// The goals of the whole table: mean error over sources, ranking and regret over groups, out of memory over all rows.
TEST(Accuracy, AllSourcesReachTheGoals) {
  SEXTANT_NEEDS_MEASURED();
  double error = 0, tau = 0, regret = 0, regret_3 = 0;
  double peaks_error = 0;
  int peaks_of = 0, sources = 0, groups = 0, right = 0, wrong = 0, missed = 0, unknown = 0;
  for (const SourceScore& s : all_runs().scores) {
    EXPECT_EQ(s.unpredicted, stages_without_layers(s.source)) << s.source;
    right += s.oom_true;
    wrong += s.oom_false;
    missed += s.oom_missed;
    unknown += s.oom_unknown;
    groups += s.groups;
    tau += s.groups * s.kendall_tau;
    regret += s.groups * s.regret_1;
    regret_3 += s.groups * s.regret_3;
    if (s.rows > 0) {
      ++sources;
      error += s.mape;
    }
    if (s.memory_rows > 0) {
      ++peaks_of;
      peaks_error += s.memory_mape;
    }
  }
  fmt::print(
      "mean error {:.2f} % of {} sources, peak memory {:.2f} %, tau {:.2f}, regret {:.2f} %, of three {:.2f} "
      "%, OOM {} "
      "{} {}\n",
      error / sources, sources, peaks_error / peaks_of, tau / groups, regret / groups, regret_3 / groups,
      right, wrong, missed);
  EXPECT_LE(error / sources, 4.4);
  EXPECT_LE(peaks_error / peaks_of, 5.1);
  EXPECT_GE(tau / groups, 0.8);
  // The musts are 2.5 and 0.3. Of the 2.18, one erratic run of nanotron (nt-0348, measured at twice what its neighbours need)
  // is 1.35. A false alarm of memory (Aleph Alpha's 13 B, said to need 81.2 GiB) costs 0.2 and 0.2.
  EXPECT_LE(regret / groups, 2.2);
  EXPECT_LE(regret_3 / groups, 0.3);
  EXPECT_GE(right, 0.95 * (right + missed));
  EXPECT_GE(right, 0.955 * (right + wrong));
  EXPECT_LE(unknown, 18);  // docs/accuracy.md says which
}

// Of every row the framework's name is taken away: what its kernels, fusion, overlap and sharding tell is its class. The
// classes' stacks have seen some of these rows; what is held here is that what a row states is used. With ZeRO, TP, PP,
// attention and precision alone it was 10.8 %.
TEST(Accuracy, WithoutTheFrameworksNames) {
  SEXTANT_NEEDS_MEASURED();
  std::vector<RunRow> rows = all_runs().rows;
  for (RunRow& r : rows) r.framework = "somebody's trainer";
  const auto scores = score_runs(
      rows, predict_runs(rows, load_framework_map(test::preset_dir()), {test::preset_dir(), nullptr, {}}));
  double error = 0, covered = 0, timed = 0;
  int sources = 0;
  for (const SourceScore& s : scores) {
    if (s.rows < 7) continue;
    fmt::print("{:24} {:4} rows, error {:5.2f} %\n", s.source, s.rows, s.mape);
    ++sources;
    error += s.mape;
    covered += s.covered;
    timed += s.rows;
  }
  fmt::print("mean {:.2f} %, inside their intervals {:.2f}\n", error / sources, covered / timed);
  EXPECT_EQ(sources, 16);
  EXPECT_LE(error / sources, 8.9);
  EXPECT_GE(covered / timed, 0.85);
}

constexpr MemoryBound kMemoryBounds[] = {
    {"aleph_alpha", 0, 0.98, 0.97},    {"bigscience_bloom_a100", 4.3, 1, 0.8},
    {"bigscience_v100", 6.4, 1, 0.75}, {"flagperf", 6.7, 1, 1},
    {"nanotron", 9.1, 0, 1},           {"nvidia_megatron_bridge", 5.6, 1, 1},
    {"papers_misc", 6, 0, 1},          {"simumax_b200", 0.7, 0, 1},
    {"torchtitan", 10.7, 0.9, 0.9}};

TEST(Accuracy, PeaksAndOutcomes) {
  SEXTANT_NEEDS_MEASURED();
  for (const MemoryBound& bound : kMemoryBounds) {
    SCOPED_TRACE(bound.source);
    const SourceScore& s = score_of(bound.source);
    fmt::print("{:22} {:4} peaks, error {:5.2f} %; does not fit: {} right, {} false, {} missed\n",
               bound.source, s.memory_rows, s.memory_mape, s.oom_true, s.oom_false, s.oom_missed);
    EXPECT_LE(s.memory_mape, bound.mape);
    EXPECT_GE(s.oom_precision(), bound.precision);
    EXPECT_GE(s.oom_recall(), bound.recall);
  }
}

// Nine of ten measured runs lie in their interval, whatever makes them doubtful; a narrower one would not hold them.
TEST(Accuracy, IntervalsCoverNineOfTenRuns) {
  SEXTANT_NEEDS_MEASURED();
  std::map<UncertaintyClass, std::vector<double>> off;  // |log(measured / predicted)|
  const UncertaintyRules rules = load_uncertainty_rules(test::preset_dir());
  int covered = 0, rows_timed = 0, held = 0, peaks = 0;
  const auto& [rows, predictions, scores] = all_runs();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RunPrediction& p = predictions[i];
    if (rows[i].quality != 'c' && rows[i].peak_memory_GiB && p.memory_GiB) {
      held +=
          *p.memory_lower_GiB <= *rows[i].peak_memory_GiB && *rows[i].peak_memory_GiB <= *p.memory_upper_GiB;
      ++peaks;
    }
    if (rows[i].quality == 'c' || !rows[i].step_time || !p.step_s) continue;
    off[*p.uncertainty].push_back(std::abs(std::log(rows[i].step_time->v / *p.step_s)));
    covered += *p.step_lower_s <= rows[i].step_time->v && rows[i].step_time->v <= *p.step_upper_s;
    ++rows_timed;
  }
  for (auto& [uncertainty, errors] : off) {
    std::sort(errors.begin(), errors.end());
    const double q90 = errors[errors.size() * 9 / 10];
    const double half_width = rules.step_half_width(uncertainty);
    fmt::print("{:12} {:4} runs, 90th percentile {:.3f}, half width {:.3f}\n", name(uncertainty),
               errors.size(), std::expm1(q90), half_width);
    // Not narrower than its own runs say, and not so wide that it says nothing.
    EXPECT_GE(half_width / std::expm1(q90), 0.9) << name(uncertainty);
    EXPECT_LE(half_width / std::expm1(q90), 1.6) << name(uncertainty);
  }
  const double coverage = static_cast<double>(covered) / rows_timed;
  fmt::print("coverage {:.3f} of {} runs\n", coverage, rows_timed);
  EXPECT_GE(coverage, 0.85);
  EXPECT_LE(coverage, 0.95);
  const double of_peaks = static_cast<double>(held) / peaks;
  fmt::print("coverage {:.3f} of {} peaks\n", of_peaks, peaks);
  EXPECT_GE(of_peaks, 0.85);
  // Widths hold nine of ten of sources that no fit saw (preset_fits_test.cpp): of rows that were fitted to they hold more.
  EXPECT_LE(of_peaks, 0.99);
}

// Presets say how far these runs reach, so that predictions beyond can say so.
TEST(Accuracy, PresetsSayHowFarTheRunsReach) {
  SEXTANT_NEEDS_MEASURED();
  const auto map = load_framework_map(test::preset_dir());
  std::map<std::string, MeasuredRange> ranges;
  std::set<std::string> stacks = {"megatron-core"};  // megatron-lm-2024 and nemo-dgxc are it, of other dates
  for (const auto& file : std::filesystem::directory_iterator(test::measured_dir() / "runs")) {
    if (file.path().extension() != ".csv") continue;
    for (const RunRow& row : read_runs(file.path())) {
      if (row.quality == 'c' || !row.step_time) continue;
      const ResolvedRun run = resolve(row, map, test::preset_dir());
      EXPECT_EQ(run.note.find("far from any"), std::string::npos) << row.run_id;
      if (!run.by_class) stacks.insert(run.stack.name);
      MeasuredRange& r = ranges[run.cluster.device.generation];
      r.generation = run.cluster.device.generation;
      ++r.runs;
      r.gpus = std::max(r.gpus, run.plan.world());
      r.seq_len = std::max(r.seq_len, run.training.seq_len);
      const std::int64_t parameters = parameter_counts(run.model).total;
      r.parameters = std::max(r.parameters, parameters);
      const auto lower = [](auto& least, auto value) { least = least > 0 ? std::min(least, value) : value; };
      lower(r.least_parameters, parameters);
      lower(r.least_seq_len, run.training.seq_len);
      if (run.cluster.nodes > 1) {
        const double rate = run.cluster.fabric.bandwidth.v / 1e9;
        lower(r.least_GBps, rate);
        r.most_GBps = std::max(r.most_GBps, rate);
      }
      if (std::ranges::find(r.devices, run.cluster.device.name) == r.devices.end())
        r.devices.push_back(run.cluster.device.name);
    }
  }
  EXPECT_EQ(map.measured_stacks, std::vector<std::string>(stacks.begin(), stacks.end()));
  EXPECT_EQ(map.measured.size(), ranges.size());
  for (auto& [generation, r] : ranges) {
    std::ranges::sort(r.devices);
    const auto said = std::ranges::find(map.measured, generation, &MeasuredRange::generation);
    EXPECT_TRUE(said != map.measured.end() && *said == r) << fmt::format(
        R"({{"generation": "{}", "runs": {}, "gpus": {}, "seq_len": {}, "parameters": {}, "least_seq_len": {}, )"
        R"("least_parameters": {}, "least_GBps": {}, "most_GBps": {}, "devices": ["{}"]}})",
        r.generation, r.runs, r.gpus, r.seq_len, r.parameters, r.least_seq_len, r.least_parameters,
        r.least_GBps, r.most_GBps, fmt::join(r.devices, "\", \""));
  }
}

}  // namespace
}  // namespace sextant
