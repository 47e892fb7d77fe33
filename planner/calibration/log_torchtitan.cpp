#include "planner/calibration/log_torchtitan.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

// "[ 'dp_shard', 'tp'], [4, 2]" or "pp=1, dp_replicate=1, dp_shard=2, cp=1, tp=1".
void read_mesh(std::string_view line, RunLog& log) {
  std::map<std::string, std::int64_t> mesh;
  if (line.find("dp_shard=") != std::string_view::npos) {
    for (const char* axis : {"pp", "dp_replicate", "dp_shard", "cp", "tp"})
      if (const auto n = number_after(line, fmt::format("{}=", axis)); n && *n >= 1)
        mesh[axis] = std::llround(*n);
  } else {
    const std::size_t names = line.find('['), numbers = line.rfind('[');
    if (names == std::string_view::npos || numbers <= names) return;
    std::vector<std::string> axes;
    for (std::size_t at = line.find('\'', names); at < numbers;) {
      const std::size_t end = line.find('\'', at + 1);
      if (end == std::string_view::npos || end > numbers) break;
      axes.emplace_back(line.substr(at + 1, end - at - 1));
      at = line.find('\'', end + 1);
    }
    std::string_view rest = line.substr(numbers + 1);
    for (const std::string& axis : axes) {
      std::int64_t n = 0;
      rest.remove_prefix(std::min(rest.find_first_of("0123456789"), rest.size()));
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), n);
      if (error != std::errc()) return;
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
      mesh[axis] = n;
    }
  }
  const auto of = [&](const char* axis) { return mesh.contains(axis) ? mesh.at(axis) : 1; };
  log.says["tp"] = of("tp"), log.says["pp"] = of("pp"), log.says["cp"] = of("cp");
  log.says["dp"] = of("dp_shard") * of("dp_replicate") * of("dp");
  log.says["shard_degree"] = of("dp_shard") * of("dp");
  log.says["zero_stage"] = log.says["shard_degree"] > 1 ? 3 : 0;
  if (log.says["tp"] > 1) log.says["sequence_parallel"] = 1;
}

// "Applied full activation checkpointing to the model"; which layers or operations "selective" keeps is in the printed
// configuration, if that is printed.
void read_torchtitan_recompute(std::string_view line, RunLog& log) {
  const auto has = [&](std::string_view text) { return line.find(text) != std::string_view::npos; };
  if (has("activation checkpointing to the model")) {
    if (has("Applied full") || has("Applied FullAC")) log.says["recompute"] = 2;
    if (has("Applied selective") || has("Applied SelectiveAC")) log.says["recompute"] = 1;
    if (has("Applied SelectiveAC")) log.says["recompute_every"] = 0;  // from 2026 on by operation alone
  }
  if (const std::size_t option = line.find("selective_ac_option"); option != std::string_view::npos) {
    std::string_view value = line.substr(option + std::string_view("selective_ac_option").size());
    value.remove_prefix(std::min(value.find_first_not_of("\"': ="), value.size()));
    value = value.substr(0, value.find_first_of("\"', }\r"));
    if (const auto every = whole_number(value); every && *every > 0)
      log.says["recompute_every"] = *every;
    else if (value == "op")
      log.says["recompute_every"] = 0;
  }
}

}  // namespace

void read_torchtitan(std::string_view line, int at, StepLines& steps, RunLog& log) {
  // "CUDA capacity: NVIDIA H100 with 95.00GiB memory"
  constexpr std::string_view kCapacity = "CUDA capacity: ";
  if (const std::size_t device = line.find(kCapacity); device != std::string_view::npos) {
    const std::string_view rest = line.substr(device + kCapacity.size());
    log.device = std::string(rest.substr(0, rest.find(" with ")));
    if (const auto gib = number_after(rest, " with ")) log.device_GiB = *gib;
  }
  if (line.find("device mesh") != std::string_view::npos) read_mesh(line, log), steps.starts();
  read_torchtitan_recompute(line, log);
  read_torchtitan_kernels(line, log.kernels);
  if (line.find("Applied CPU Offloading to the model") != std::string_view::npos)
    log.says["optimizer_offload"] = log.says["parameter_offload"] = 1;
  if (line.find("Float8") != std::string_view::npos && line.find("training active") != std::string_view::npos)
    log.compute = Dtype::fp8;
  if (line.find("Tensor Parallelism to the model") != std::string_view::npos)
    log.says["overlap_tp"] = line.find("Async") != std::string_view::npos ? 1 : 0;
  if (const auto n = number_after(line, "gradient accumulation steps")) log.accumulation = std::llround(*n);
  for (const auto& [label, column] : {std::pair{"local batch size", "micro_batch"},
                                      {"global batch size", "global_batch"},
                                      {"sequence length", "seq_len"},
                                      {"maximum context length", "seq_len"}})
    if (const auto n = number_after(line, label)) log.says[column] = std::llround(*n);
  // From 2026 on: "initialized with 8192 tokens per DP rank, 65536 tokens per train step, ... maximum context length 8192".
  if (const auto n = number_after(line, "tokens per DP rank, ")) log.batch_tokens = *n;
  // With pipeline stages they are those of several micro-batches.
  const bool stages = log.says.contains("pp") && log.says.at("pp") > 1;
  if (line.find("tokens per DP rank") != std::string_view::npos && !stages && log.says.contains("seq_len"))
    if (const auto n = number_after(line, "initialized with "))
      log.says["micro_batch"] = std::max(1LL, std::llround(*n / static_cast<double>(log.says.at("seq_len"))));
  if (line.find("step:") == std::string_view::npos || line.find("validate step:") != std::string_view::npos)
    return;
  if (line.find("tps:") != std::string_view::npos || line.find("wps:") != std::string_view::npos ||
      line.find("loss:") != std::string_view::npos) {
    const auto number = number_after(line, "step:");
    steps.read(line, at, number ? std::optional(std::llround(*number)) : std::nullopt);
  }
  if (const auto gib = number_after(line, "memory:"); gib && line.find("GiB") != std::string_view::npos) {
    keep_largest(log.peak_memory_GiB, *gib);
    log.memory_kind = "torch_reserved";
  }
}

}  // namespace sextant
