// What do the logs of training frameworks say? Step times, peak memory and whatever the log states about model, batch
// and layout, by the columns of the schema of runs (core/runs/run_row.hpp). Formats as their programs print them:
// Megatron-LM (training.py, arguments.py), torchtitan (components/metrics.py), nanotron (logging), Megatron-Bridge
// (training/utils/train_utils.py, with its printed configuration), DeepSpeed (utils/timer.py, runtime/pipe/engine.py,
// runtime/config.py), NeMo (a line per step, or a progress bar that writes over itself). Ignores everything else in the file;
// prefixes of launchers and colours do not matter (planner/calibration/launcher_tags.hpp). One file is one run: a layout or batch
// that changes between steps is refused.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/units.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "planner/calibration/launcher_tags.hpp"
#include "planner/calibration/log_kernels.hpp"
#include "planner/calibration/printed_machine.hpp"

namespace sextant {

enum class LogFormat : std::uint8_t { megatron_lm, torchtitan, nanotron, megatron_bridge, deepspeed, nemo };
inline constexpr std::array<std::string_view, 6> kLogFormatNames = {
    "Megatron-LM", "torchtitan", "nanotron", "Megatron-Bridge", "DeepSpeed", "NeMo"};

// What LoggedStep::value is.
enum class StepValue : std::uint8_t { seconds, tokens_per_s_of_gpu, sequences_per_s };

struct LoggedStep {
  double value = 0;       // as RunLog::value says
  int line = 0;           // of the file, from 1
  bool warms_up = false;  // the first of a run, or of one that started again: compiles, allocates, reads
};

// How many parameters a model has, as its program prints it.
struct LoggedParameters {
  double count = 0, within = 0;  // printed, and how far the rounding of it may be off
  int line = 0;                  // of the file, from 1
};

// A number that two others settle, within what their rounding leaves open.
struct SettledCount {
  double low = 0, high = 0;
  std::string by;  // "consumed samples of each step"
  int line = 0;    // of the file, from 1
};

struct RunLog {
  std::string file;
  LogFormat format = LogFormat::megatron_lm;
  StepValue value = StepValue::seconds;   // torchtitan and DeepSpeed print rates, no times
  std::vector<LoggedStep> steps;          // that can be read, in order
  std::vector<Problem> unread;            // steps that cannot: nan, or a line that was cut
  std::optional<double> peak_memory_GiB;  // largest seen
  std::string memory_kind;                // as RunRow
  // Column of a run -> value: hidden, tp, micro_batch, global_batch, recompute (0 none, 1 selective, 2 full) ...
  std::map<std::string, std::int64_t> says;
  std::map<std::string, int> lines;  // of a column, and of "compute": where it was last said, from 1
  std::optional<LoggedParameters> parameters;  // of the whole model
  std::map<std::pair<int, int>, LoggedParameters>
      rank_parameters;                       // of a tensor and pipeline rank (Megatron-LM)
  std::string device;                        // as the program prints it: "NVIDIA H100"; empty: not said
  double device_GiB = 0;                     // its memory; 0: not said
  PrintedMachine machine;                    // what is said in passing, by any rank
  std::optional<double> batch_tokens;        // of a step, printed with three digits
  bool rounded_batch = false;                // global_batch is printed with three digits ("1.02K")
  std::optional<std::int64_t> accumulation;  // micro-batches of a step and replica
  std::map<std::string, SettledCount>
      settled;           // by column: global_batch, seq_len, gpus, pp (planner/calibration/log_settled.hpp)
  std::string schedule;  // of pipeline stages, as torchtitan names them: "Interleaved1F1B"; empty: not said
  std::string pipeline_layout;  // Megatron-LM's layout string, "Et|t*2|tL"; empty: not said
  // Of a model chunk, where torchtitan prints it; of one that reaches to the model's end -1 - its first layer.
  std::map<int, int> chunk_layers;
  std::vector<int>
      split_points;  // first layers of the chunks behind the first, as torchtitan printed its split until July 2025
  bool counts_words = false;  // "wps" for tokens per second: torchtitan until the end of 2024
  // Whose peak peak_memory_GiB is: pipeline ranks (torchtitan, nanotron), ranks of the job (Megatron-LM). Both empty: what the launcher's
  // tags of its lines say, and that torchtitan computes no loss there.
  std::set<int> memory_stages, memory_ranks;
  std::set<LineTag> memory_tags;
  bool peak_without_loss = false;
  int tasks = 0;                        // of the launcher's, by the highest number
  std::optional<double> offload_share;  // of the optimizer that is on the host
  std::optional<Dtype> compute, gradient, reduction;
  LoggedKernels kernels;

  // The value of a column; nothing where the log does not state it.
  std::optional<std::int64_t> said(const std::string& column) const;
  // "x.log:12", where that is stated, or the file alone.
  std::string place_of(const std::string& column) const;
};

// The format of the text by its lines of steps; nothing where it has none.
std::optional<LogFormat> log_format_of(std::string_view text);

// Throws ConfigError when no known line is found, naming the formats, and when no step can be read, naming the first. A file may be
// packed with gzip.
RunLog read_run_log(const std::filesystem::path&);
RunLog parse_run_log(std::string_view text, const std::string& file);

// What the caller has stated: an option, a plan file or the parts of a key.
struct LogContext {
  bool plan = false, seq_len = false, global_batch = false, compute = false, gradient = false,
       reduction = false;
  // Of a plan key what it states ("tp", "dp", "z"); nothing: a whole plan. What a key leaves out, the log says.
  std::optional<std::vector<std::string>> parts = std::nullopt;
  int gpus = 0;  // of the cluster: a data-parallel degree that the log does not say fills it
  bool selective_by_operation = true;  // StackRules: otherwise torchtitan's policy is taken as none
};

// Fills what the log states and checks it against what is known already; says what it had to take for granted. Throws
// ConfigError, all inconsistencies at once with their lines.
std::vector<std::string> apply_log(const RunLog&, ModelSpec&, TrainingSpec&, ParallelPlan&,
                                   const LogContext&);

// How much longer the slower tenth of the steady steps takes than the faster tenth: 0.1 is 10 %. Nothing of fewer than ten.
std::optional<double> spread_of_steps(const RunLog&);

// The steady step: median without the first step of a run, and of more than four without the first two or the first tenth.
// Throws ConfigError where nothing is left.
Seconds steady_step(const RunLog&, const TrainingSpec&, const ParallelPlan&);

}  // namespace sextant
