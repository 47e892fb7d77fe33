#include "planner/calibration/log_deepspeed.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/shallow_json.hpp"
#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

using nlohmann::json;

// "cpu" or "nvme" puts it on the host.
void place(const char* column, std::string_view device, RunLog& log) {
  log.says[column] = device == "cpu" || device == "nvme" ? 1 : 0;
  if (device == "nvme") log.says["nvme"] = 1;
}

const json& member(const json& j, const char* key) {
  static const json none;
  const auto it = j.is_object() ? j.find(key) : j.end();
  return j.is_object() && it != j.end() ? *it : none;
}

// {"device": "cpu", "ratio": 0.3}
void read_offload(const json& section, const char* column, RunLog& log) {
  const json &device = member(section, "device"), &ratio = member(section, "ratio");
  if (!device.is_string()) return;
  place(column, device.get<std::string>(), log);
  if (ratio.is_number()) log.offload_share = ratio.get<double>();
}

void read_zero(const json& zero, RunLog& log) {
  if (const json& stage = member(zero, "stage"); stage.is_number_integer())
    log.says["zero_stage"] = stage.get<std::int64_t>();
  // Until 2021; set to null where the present names stand beside them.
  for (const auto& [key, column] : {std::pair{"cpu_offload", "optimizer_offload"},
                                    {"cpu_offload_param", "parameter_offload"},
                                    {"cpu_offload_params", "parameter_offload"}})
    if (member(zero, key).is_boolean()) place(column, member(zero, key).get<bool>() ? "cpu" : "none", log);
  read_offload(member(zero, "offload_optimizer"), "optimizer_offload", log);
  read_offload(member(zero, "offload_param"), "parameter_offload", log);
}

// The user's own configuration: what "auto" leaves open stands in the list before it.
void read_user_json(const json& j, RunLog& log) {
  read_zero(member(j, "zero_optimization"), log);
  for (const auto& [key, column] :
       {std::pair{"train_batch_size", "global_batch"}, {"train_micro_batch_size_per_gpu", "micro_batch"}})
    if (const json& n = member(j, key); n.is_number_integer() && n.get<std::int64_t>() > 0)
      log.says[column] = n.get<std::int64_t>();
  if (const json& host = member(member(j, "activation_checkpointing"), "cpu_checkpointing");
      host.is_boolean())
    log.says["host_checkpoints"] = host.get<bool>() ? 1 : 0;
  if (const json& n = member(j, "gradient_accumulation_steps");
      n.is_number_integer() && n.get<std::int64_t>() > 0)
    log.accumulation = n.get<std::int64_t>();
  for (const auto& [key, format] :
       {std::pair{"bf16", Dtype::bf16}, {"bfloat16", Dtype::bf16}, {"fp16", Dtype::fp16}})
    if (const json& on = member(member(j, key), "enabled"); on.is_boolean() && on.get<bool>())
      log.compute = format;
  if (const json& format = member(member(j, "data_types"), "grad_accum_dtype"); format.is_string())
    if (const auto known = dtype_from_name(format.get<std::string>())) log.gradient = known;
  if (const json& format = member(j, "communication_data_type"); format.is_string())
    if (const auto known = dtype_from_name(format.get<std::string>())) log.reduction = known;
}

// "offload_optimizer=DeepSpeedZeroOffloadOptimizerConfig(device='cpu', ..., ratio=1.0)", pydantic 1 with "<OffloadDeviceEnum.cpu: 'cpu'>".
void read_zero_dataclass(std::string_view line, RunLog& log) {
  for (const auto& [key, column] :
       {std::pair{"offload_param=", "parameter_offload"}, {"offload_optimizer=", "optimizer_offload"}}) {
    const std::size_t at = line.find(std::string(" ") + key);
    if (at == std::string_view::npos) continue;
    std::string_view value = line.substr(at + 1 + std::string_view(key).size());
    if (value.starts_with("None")) {
      log.says[column] = 0;
      continue;
    }
    std::size_t end = value.find('(');
    for (int open = 0; end < value.size(); ++end) {
      open += value[end] == '(' ? 1 : value[end] == ')' ? -1 : 0;
      if (open == 0) break;
    }
    value = value.substr(0, end);
    const std::size_t device = value.find("device="), open = value.find('\'', std::min(device, value.size()));
    if (device == std::string_view::npos || open == std::string_view::npos) continue;
    place(column, value.substr(open + 1, value.find('\'', open + 1) - open - 1), log);
    if (const auto share = number_after(value, "ratio=")) log.offload_share = *share;
  }
}

// What optimizers print of themselves, where the configuration is not in the log.
void read_optimizer(std::string_view line, RunLog& log) {
  const auto has = [&](std::string_view text) { return line.find(text) != std::string_view::npos; };
  if (has("Creating "))
    if (const auto stage = number_after(line, " ZeRO stage ")) log.says["zero_stage"] = std::llround(*stage);
  if (has("CPU Offload: ")) log.says["optimizer_offload"] = has("CPU Offload: True") ? 1 : 0;
  if (has("Basic Optimizer = DeepSpeedCPUAdam")) log.says["optimizer_offload"] = 1;
}

}  // namespace

void DeepSpeedLines::collect(std::string_view line, RunLog& log) {
  constexpr std::size_t kLongest = 1 << 18;
  if (depth_ == 0) {
    const std::size_t user = line.find("  json = {"), zero = line.find("  zero_config .");
    const std::size_t open = std::min(line.find('{', std::min(user, zero)), line.size());
    if (std::min(user, zero) == std::string_view::npos || without_blanks(line.substr(open)) != "{") return;
    whole_configuration_ = user != std::string_view::npos;
    json_.clear();
    line.remove_prefix(open);
  }
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && (i == 0 || line[i - 1] != '\\')) quoted = !quoted;
    if (!quoted && line[i] == '{') ++depth_;
    if (!quoted && line[i] == '}') --depth_;
  }
  json_.append(line).push_back('\n');
  if (json_.size() > kLongest) {
    depth_ = 0;
    json_.clear();
  }
  if (depth_ > 0) return;
  depth_ = 0;
  const json read = json_or_discarded(json_);
  if (!read.is_object()) return;
  if (whole_configuration_)
    read_user_json(read, log);
  else
    read_zero(read, log);
}

void DeepSpeedLines::read_configuration(std::string_view line, RunLog& log) {
  collect(line, log);
  read_optimizer(line, log);
  if (line.find("zero_config ..") != std::string_view::npos) read_zero_dataclass(line, log);
}

void DeepSpeedLines::read(std::string_view line, int at, StepLines& steps, RunLog& log) {
  read_configuration(line, log);
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
  if (line.find(steps.label()) == std::string_view::npos) return;
  const bool engine = steps.label().ends_with('=');
  const auto number = number_after(line, engine ? "global_step=" : "steps:");
  steps.read(line, at, number ? std::optional(std::llround(*number)) : std::nullopt);
}

}  // namespace sextant
