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
  log.says["tp"] = of("tp");
  log.says["pp"] = of("pp");
  log.says["cp"] = of("cp");
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

// "Using pipeline schedule Interleaved1F1B with 8 microbatches and 8 stages.", without the numbers until January 2025, and
// "PP rank 0 is building stage_idx 4 with modules ['layers.8', 'layers.9']", until 2025 "... with start_layer layers.8, stop_layer
// layers.10", None at the model's ends.
void read_torchtitan_pipeline(std::string_view line, RunLog& log) {
  constexpr std::string_view kSchedule = "Using pipeline schedule ", kRank = "PP rank ",
                             kStage = " is building stage_idx ";
  if (const std::size_t at = line.find(kSchedule); at != std::string_view::npos) {
    const std::string_view rest = line.substr(at + kSchedule.size());
    log.schedule = std::string(rest.substr(0, rest.find_first_of(" \r")));
    if (const auto n = number_after(rest, " with "); n && *n >= 1)
      log.says["pipeline_microbatches"] = std::llround(*n);
    if (const auto n = number_after(rest, "microbatches and "); n && *n >= 1)
      log.says["stages"] = std::llround(*n);
    const bool one_chunk = log.schedule == "1F1B" || log.schedule == "GPipe";
    if (one_chunk && log.says.contains("stages") && !log.says.contains("pp"))
      log.says["pp"] = log.says.at("stages");
  }
  // "No 'pipeline_parallel_split_points' provided so the generated splits are: ['layers.8', 'layers.16'] This may be ...", from April
  // until July 2025 "... Here is the auto-generated split, which may be sub-optimal: ['layers.8', ...]."
  if (const std::size_t split = line.find("No 'pipeline_parallel_split_points'"); split != line.npos) {
    log.split_points.clear();
    const std::size_t end = line.find(']', split);
    for (std::size_t at = line.find("'layers.", split); at < end; at = line.find("'layers.", at + 1))
      if (const auto n = count_after(line.substr(at), "'layers.")) log.split_points.push_back(*n);
  }
  const auto rank = count_after(line, kRank), stage = count_after(line, kStage);
  if (!rank || !stage || *stage > kMaxChunks) return;
  log.memory_stages.insert(*rank);
  int layers = 0;
  for (std::size_t at = line.find("'layers."); at != std::string_view::npos;
       at = line.find("'layers.", at + 1))
    ++layers;
  if (line.find("with modules [") != std::string_view::npos) log.chunk_layers[*stage] = layers;
  if (line.find("with start_layer ") == std::string_view::npos) return;
  const int first = count_after(line, "start_layer layers.").value_or(0);
  const auto end = count_after(line, "stop_layer layers.");
  log.chunk_layers[*stage] = end ? *end - first : -1 - first;
}

// What a data-parallel rank computes at once is a micro-batch, and with pipeline stages as many as the schedule cuts it into. Then
// nothing says how many where the schedule's line is missing.
void settle_micro_batch(RunLog& log) {
  const auto said = [&](const char* column) { return log.says.contains(column) ? log.says.at(column) : 0; };
  const std::int64_t local = said("local_batch"), steps = said("accumulation_steps");
  const bool stages = said("pp") > 1 || !log.schedule.empty();
  const std::int64_t pieces = stages ? said("pipeline_microbatches") : 1;
  if (local > 0 && pieces > 0 && local % pieces == 0)
    log.says["micro_batch"] = local / pieces;
  else
    log.says.erase("micro_batch");
  log.accumulation = steps > 0 && pieces > 0 ? std::optional(steps * pieces) : std::nullopt;
  if (!log.says.contains("dp") && local > 0 && steps > 0 && said("global_batch") % (local * steps) == 0 &&
      said("global_batch") > 0)
    log.says["dp"] = said("global_batch") / (local * steps);
}

// "Trainer is initialized with local batch size 2, global batch size 8, gradient accumulation steps 1, sequence length 8192"; from 2026 on
// "... with 16384 tokens per DP rank, 262144 tokens per train step, ..., maximum context length 8192".
void read_torchtitan_batch(std::string_view line, RunLog& log) {
  for (const auto& [label, column] : {std::pair{"local batch size", "local_batch"},
                                      {"global batch size", "global_batch"},
                                      {"gradient accumulation steps", "accumulation_steps"},
                                      {"sequence length", "seq_len"},
                                      {"maximum context length", "seq_len"}})
    if (const auto n = number_after(line, label); n && *n >= 1) log.says[column] = std::llround(*n);
  if (line.find("tokens per DP rank") == std::string_view::npos || !log.says.contains("seq_len")) return;
  const auto length = static_cast<double>(log.says.at("seq_len"));
  if (const auto n = number_after(line, "initialized with "))
    log.says["local_batch"] = std::max(1LL, std::llround(*n / length));
  if (const auto n = number_after(line, "tokens per DP rank, "))
    log.says["global_batch"] = std::max(1LL, std::llround(*n / length));
}

// Ranks that do not hold the last stage print a loss of -1: whose line it is, where no line says it of its rank.
void read_stage_of_loss(std::string_view line, RunLog& log) {
  const auto pp = log.says.find("pp");
  if (pp == log.says.end() || pp->second < 2 || !log.chunk_layers.empty()) return;
  const auto loss = number_after(line, "loss:");
  if (loss && *loss > 0)
    log.memory_stages.insert(static_cast<int>(pp->second) - 1);
  else if (line.find("loss: -") != std::string_view::npos)
    log.peak_without_loss = true;
}

// Which GEMMs run in fp8: dense layers ("Swapped to Float8Linear layers", "MX training active"), not experts alone, and not where torchao
// could not be used.
void read_torchtitan_formats(std::string_view line, RunLog& log) {
  const auto has = [&](std::string_view text) { return line.find(text) != std::string_view::npos; };
  if (has("Failed to")) return;
  if ((has("Float8") && has("training active")) || has("Swapped to Float8Linear") ||
      has("MX training active") || has("Swapped to MXLinear") ||
      has("Converted Linear layers to MXFP8Linear"))
    log.compute = Dtype::fp8;
  if (has("Converted Linear layers to NVFP4Linear") || has("MX training active with recipe mxfp4"))
    log.says["fp4"] = 1;
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
  if (line.find("device mesh") != std::string_view::npos) {
    read_mesh(line, log);
    steps.starts();
  }
  read_torchtitan_recompute(line, log);
  read_torchtitan_kernels(line, log.kernels);
  if (line.find("Applied CPU Offloading to the model") != std::string_view::npos)
    log.says["optimizer_offload"] = log.says["parameter_offload"] = 1;
  read_torchtitan_formats(line, log);
  if (line.find("Tensor Parallelism to the model") != std::string_view::npos)
    log.says["overlap_tp"] = line.find("Async") != std::string_view::npos ? 1 : 0;
  read_torchtitan_pipeline(line, log);
  read_torchtitan_batch(line, log);
  settle_micro_batch(log);
  if (line.find("step:") == std::string_view::npos || line.find("validate step:") != std::string_view::npos)
    return;
  if (line.find("wps:") != std::string_view::npos) log.counts_words = true;
  if (line.find("tps:") != std::string_view::npos || line.find("wps:") != std::string_view::npos ||
      line.find("loss:") != std::string_view::npos) {
    const auto number = number_after(line, "step:");
    steps.read(line, at, number ? std::optional(std::llround(*number)) : std::nullopt);
  }
  if (const auto gib = number_after(line, "memory:"); gib && line.find("GiB") != std::string_view::npos) {
    keep_largest(log.peak_memory_GiB, *gib);
    log.memory_kind = "torch_reserved";
    read_stage_of_loss(line, log);
  }
}

}  // namespace sextant
