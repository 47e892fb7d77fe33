#include "planner/calibration/unread_log.hpp"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "core/base/words.hpp"

namespace sextant {

namespace {

// A program by words of its lines, and where they show the time of a step.
struct OtherProgram {
  std::string_view word, other_word, name, time;
};
constexpr std::array kOtherPrograms = {
    OtherProgram{"bf16 MFU", "tok/s", "llm.c", "milliseconds before 'MFU'"},
    OtherProgram{"iter time:", "loss train:", "LitGPT", "'iter time'"},
    OtherProgram{", time ", ", mfu ", "nanoGPT", "'time'"},
    OtherProgram{"'train_runtime'", "'train_steps_per_second'", "transformers' Trainer",
                 "1 / train_steps_per_second"},
    OtherProgram{"'grad_norm'", "'learning_rate'", "transformers' Trainer",
                 "the seconds of its progress bar, '8.30s/it'"},
    OtherProgram{"'loss'", "'learning_rate'", "transformers' Trainer",
                 "the seconds of its progress bar, '8.30s/it'"},
    OtherProgram{"s/it]", "", "a program with a progress bar", "the seconds of the bar, '8.30s/it'"},
    OtherProgram{"it/s]", "", "a program with a progress bar", "1 / the steps a second of the bar"},
    OtherProgram{"s/it, ", "%|", "a program with a progress bar", "the seconds of the bar, '8.30s/it'"},
    OtherProgram{"it/s, ", "%|", "a program with a progress bar", "1 / the steps a second of the bar"},
    OtherProgram{"samples/sec", "TFLOPS per GPU by Megatron", "Colossal-AI's benchmark",
                 "the global batch over its samples/sec"},
    OtherProgram{"\"iteration-time\"", "", "metrics of Megatron-LM as JSON", "\"iteration-time\""},
    OtherProgram{"completed step:", "seconds:", "MaxText", "'seconds'"},
    OtherProgram{"throughput/", "[batch=", "Composer", "throughput/batches_per_sec"},
    OtherProgram{"interval_runtime:", "interval_steps_per_second", "PaddleNLP",
                 "1 / interval_steps_per_second"},
};

// CSV with a column of steps, or an object of JSON: what trackers of experiments (wandb, TensorBoard) write.
bool is_table(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  const std::string first = lower(text.substr(0, text.find('\n')));
  return first.starts_with('{') || first.starts_with("step,") || first.starts_with("\"step\",") ||
         first.find(",step,") != std::string::npos;
}

}  // namespace

Problem unread_log(std::string_view text, const std::string& file) {
  const std::string formats =
      "a log of Megatron-LM or Megatron-Bridge ('elapsed time per iteration (ms):'), nanotron "
      "('time_per_iteration_ms:'), torchtitan ('step: ... tps:'), DeepSpeed ('CurrSamplesPerSec=') or NeMo "
      "('train_step_timing in s')";
  const auto has = [&](std::string_view words) { return text.find(words) != std::string_view::npos; };
  for (const OtherProgram& p : kOtherPrograms)
    if (has(p.word) && has(p.other_word))
      return {
          file, "", fmt::format("a log of {}", p.name), formats,
          fmt::format("its step time ({}) can be given as step_time_s of a table of runs: --runs FILE.csv "
                      "(docs/calibrating.md)",
                      p.time)};
  if (has("CUDA out of memory") || has("OutOfMemoryError"))
    return {
        file, "", "a run that went out of memory before its first step", formats,
        "in a shortlist (plan --shortlist) it is entered as \"outcome\": \"oom\": calibrate --tried FILE"};
  if (is_table(text))
    return {file, "", "a table or metrics as JSON", formats,
            "a table goes to --runs FILE.csv, with columns as sextant validate --example prints them"};
  return {file, "", "no line with a step time", formats, "steps must be logged, not only losses"};
}

}  // namespace sextant
