// What do the logs of training frameworks and of nccl-tests say? Step times, peak memory and whatever the log states
// about model, batch and layout, by the columns of the schema of runs (core/run_row.hpp). Formats as their programs
// print them: Megatron-LM (training.py, arguments.py), torchtitan (components/metrics.py), nanotron (logging),
// nccl-tests (common.cu). Ignores everything else in the file; prefixes of launchers ("[rank0]:") do not matter.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model_spec.hpp"
#include "core/parallel_plan.hpp"
#include "core/training_spec.hpp"
#include "core/work.hpp"

namespace sextant {

enum class LogFormat : std::uint8_t { megatron_lm, torchtitan, nanotron };
inline constexpr std::array<std::string_view, 3> kLogFormatNames = {"Megatron-LM", "torchtitan", "nanotron"};

struct RunLog {
  std::string file;
  LogFormat format = LogFormat::megatron_lm;
  std::vector<double> step_s;             // every step printed, in order
  std::vector<double> tokens_per_s_gpu;   // where the log has no step times (torchtitan)
  std::optional<double> peak_memory_GiB;  // largest seen
  std::string memory_kind;                // as RunRow
  std::map<std::string, std::int64_t>
      says;  // column of a run -> value: hidden, tp, micro_batch, global_batch ...
};

// Throws ConfigError when no known line is found, naming the formats.
RunLog read_run_log(const std::filesystem::path&);
RunLog parse_run_log(std::string_view text, const std::string& file);

// Fills what the log states and checks it against what is known already: `model_known`, `plan_known` say whether the
// caller has stated them. Throws ConfigError where they contradict.
void apply_log(const RunLog&, ModelSpec&, TrainingSpec&, ParallelPlan&, bool plan_known, bool batch_known);

// The steady step: median after the first steps (a tenth of them, at least two where there are more than four).
Seconds steady_step(const RunLog&, const TrainingSpec&, const ParallelPlan&);

// One table of nccl-tests.
struct NcclSample {
  std::int64_t bytes = 0;  // as printed: of the whole vector
  double time_s = 0;       // out of place
};
struct NcclTable {
  std::string file;
  CollectiveKind kind = CollectiveKind::all_reduce;
  int ranks = 0, nodes = 0;
  std::vector<NcclSample> samples;
};
bool is_nccl_table(std::string_view text);
NcclTable parse_nccl_table(std::string_view text, const std::string& file);

}  // namespace sextant
