#include "planner/calibration/log_deepspeed.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/calibration/log_text.hpp"

namespace sextant {

void read_deepspeed(std::string_view line, int at, StepLines& steps, RunLog& log) {
  for (const auto& [key, column] :
       {std::pair{"train_batch_size", "global_batch"}, {"train_micro_batch_size_per_gpu", "micro_batch"}}) {
    const std::size_t found = line.find(key);
    if (found == std::string_view::npos || (found > 0 && line[found - 1] != ' ')) continue;
    std::string_view value = line.substr(found + std::string_view(key).size());
    value.remove_prefix(std::min(value.find_first_not_of(" ."), value.size()));
    if (const auto n = whole_number(without_blanks(value)); n && *n > 0) log.says[column] = *n;
  }
  if (line.find("gradient_accumulation_steps ") != std::string_view::npos &&
      line.find("..") != std::string_view::npos)
    if (const auto n = whole_number(last_word(without_blanks(line))); n && *n > 0) log.accumulation = *n;
  if (line.find("zero_optimization_stage") != std::string_view::npos)
    if (const auto n = whole_number(last_word(without_blanks(line)))) log.says["zero_stage"] = *n;
  for (const auto& [key, format] :
       {std::pair{"bfloat16_enabled", Dtype::bf16}, {"fp16_enabled", Dtype::fp16}})
    if (line.find(key) != std::string_view::npos && without_blanks(line).ends_with("True"))
      log.compute = format;
  if (const auto gb = number_after(line, "MaxMemAllocated=")) {  // its GB are GiB
    keep_largest(log.peak_memory_GiB, *gb);
    log.memory_kind = "torch_allocated";
  }
  // Ranks that hold the same parameters: DeepSpeed's world_size is that of data parallelism.
  const auto said = [&](const char* column) { return log.says.contains(column) ? log.says.at(column) : 0; };
  if (const std::int64_t at_once = said("micro_batch") * log.accumulation.value_or(0);
      at_once > 0 && said("global_batch") > 0 && said("global_batch") % at_once == 0)
    log.says["dp"] = said("global_batch") / at_once;
  const bool engine = line.find("CurrSamplesPerSec=") != std::string_view::npos;
  if (!engine && line.find("iter time (s):") == std::string_view::npos) return;
  const auto number = number_after(line, engine ? "global_step=" : "steps:");
  steps.read(line, at, number ? std::optional(std::llround(*number)) : std::nullopt);
}

}  // namespace sextant
