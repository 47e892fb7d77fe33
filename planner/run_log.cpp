#include "planner/run_log.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "core/error.hpp"
#include "core/file_io.hpp"

namespace sextant {

namespace {

// The number that stands right after `label`; suffixes K, M, G, T multiply ("11.5K"), commas are skipped ("6,094").
std::optional<double> number_after(std::string_view line, std::string_view label) {
  const std::size_t at = line.find(label);
  if (at == std::string_view::npos) return std::nullopt;
  std::size_t i = at + label.size();
  while (i < line.size() && line[i] == ' ') ++i;
  std::string digits;
  for (; i < line.size() &&
         (std::isdigit(static_cast<unsigned char>(line[i])) != 0 || line[i] == '.' || line[i] == ',' ||
          line[i] == 'e' || line[i] == 'E' || line[i] == '+' || (line[i] == '-' && !digits.empty()));
       ++i)
    if (line[i] != ',') digits += line[i];
  double x = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), x);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(x)) return std::nullopt;
  // "11.5K" is thousands, "47.66GiB" is not a suffix but a unit.
  constexpr std::string_view kSuffixes = "KMGT";
  const bool ends = i + 1 >= line.size() || std::isalpha(static_cast<unsigned char>(line[i + 1])) == 0;
  if (const std::size_t power = i < line.size() ? kSuffixes.find(line[i]) : std::string_view::npos;
      ends && power != std::string_view::npos)
    x *= std::pow(1000.0, static_cast<double>(power + 1));
  return x;
}

void each_line(std::string_view text, const std::function<void(std::string_view)>& visit) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void keep_largest(std::optional<double>& largest, double x) { largest = std::max(largest.value_or(0), x); }

// "  hidden_size ..................................... 4096", Megatron's print of its arguments.
struct Argument {
  std::string_view key;
  const char* column;
};
constexpr std::array kArguments = {
    Argument{"num_layers", "layers"},
    Argument{"hidden_size", "hidden"},
    Argument{"num_attention_heads", "heads"},
    Argument{"num_query_groups", "kv_heads"},
    Argument{"ffn_hidden_size", "ffn_hidden"},
    Argument{"seq_length", "seq_len"},
    Argument{"micro_batch_size", "micro_batch"},
    Argument{"global_batch_size", "global_batch"},
    Argument{"tensor_model_parallel_size", "tp"},
    Argument{"pipeline_model_parallel_size", "pp"},
    Argument{"context_parallel_size", "cp"},
    Argument{"data_parallel_size", "dp"},
    Argument{"sequence_parallel", "sequence_parallel"},
    Argument{"use_distributed_optimizer", "zero_stage"},
    Argument{"num_layers_per_virtual_pipeline_stage", "layers_per_chunk"},
    Argument{"virtual_pipeline_model_parallel_size", "virtual_stages"},
    Argument{"padded_vocab_size", "vocab"},
};

void read_argument(std::string_view line, RunLog& log) {
  const std::size_t dots = line.find(" ..");
  if (dots == std::string_view::npos) return;
  std::string_view key = line.substr(0, dots);
  key.remove_prefix(std::min(key.find_last_of(" \t") + 1, key.size()));
  std::string_view value = line.substr(line.find_last_of('.') + 1);
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  value = value.substr(0, value.find_last_not_of(" \r") + 1);
  const auto known =
      std::find_if(kArguments.begin(), kArguments.end(), [&](const Argument& a) { return a.key == key; });
  if (known != kArguments.end()) {
    std::int64_t x = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), x);
    if (error == std::errc() && end == value.data() + value.size())
      log.says[known->column] = x;
    else if (value == "True" || value == "False")
      log.says[known->column] = value == "True" ? 1 : 0;
  }
  // Recompute is two arguments; 0 none, 1 selective, 2 full.
  if (key == "recompute_granularity")
    log.says["recompute"] = value == "full" ? 2 : value == "selective" ? 1 : 0;
}

void read_megatron(std::string_view line, RunLog& log) {
  if (const auto ms = number_after(line, "elapsed time per iteration (ms):")) {
    log.step_s.push_back(*ms * 1e-3);
    if (const auto batch = number_after(line, "global batch size:"))
      log.says["global_batch"] = std::llround(*batch);
  }
  if (line.find("memory (MB)") != std::string_view::npos)
    if (const auto mb = number_after(line, "max allocated:")) {
      keep_largest(log.peak_memory_GiB, *mb / 1024);  // Megatron's MB are MiB
      log.memory_kind = "torch_allocated";
    }
  read_argument(line, log);
}

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

void read_torchtitan(std::string_view line, RunLog& log) {
  if (line.find("device mesh") != std::string_view::npos) read_mesh(line, log);
  for (const auto& [label, column] : {std::pair{"local batch size", "micro_batch"},
                                      {"global batch size", "global_batch"},
                                      {"sequence length", "seq_len"}})
    if (const auto n = number_after(line, label)) log.says[column] = std::llround(*n);
  if (line.find("step:") == std::string_view::npos) return;
  if (const auto rate = number_after(line, "tps:"); rate && *rate > 0) log.tokens_per_s_gpu.push_back(*rate);
  if (const auto gib = number_after(line, "memory:"); gib && line.find("GiB") != std::string_view::npos) {
    keep_largest(log.peak_memory_GiB, *gib);
    log.memory_kind = "torch_reserved";
  }
}

void read_nanotron(std::string_view line, RunLog& log) {
  if (const auto ms = number_after(line, "elapsed_time_per_iteration_ms:")) {
    log.step_s.push_back(*ms * 1e-3);
    if (const auto batch = number_after(line, "global_batch_size:"))
      log.says["global_batch"] = std::llround(*batch);
  }
  if (const auto bytes = number_after(line, "cuda_max_memory_reserved:")) {
    keep_largest(log.peak_memory_GiB, *bytes / 1073741824.0);
    log.memory_kind = "torch_reserved";
  }
  // Its configuration as YAML or as a printed dataclass.
  for (const auto& [label, column] : {std::pair{"micro_batch_size", "micro_batch"},
                                      {"sequence_length", "seq_len"},
                                      {"zero_stage", "zero_stage"},
                                      {"num_hidden_layers", "layers"},
                                      {"num_attention_heads", "heads"},
                                      {"num_key_value_heads", "kv_heads"},
                                      {"hidden_size", "hidden"},
                                      {"intermediate_size", "ffn_hidden"}})
    for (const char* sign : {":", "="})
      if (const auto n = number_after(line, fmt::format("{}{}", label, sign)))
        log.says[column] = std::llround(*n);
  if (line.find("ParallelismArgs(") == std::string_view::npos && line.find(':') == std::string_view::npos &&
      line.find('=') == std::string_view::npos)
    return;
  for (const char* axis : {"dp", "pp", "tp"})
    for (const auto& form :
         {fmt::format("({}=", axis), fmt::format(" {}=", axis), fmt::format(" {}: ", axis)})
      if (const auto n = number_after(line, form); n && *n >= 1) log.says[axis] = std::llround(*n);
}

LogFormat format_of(std::string_view text, const std::string& file) {
  if (text.find("elapsed time per iteration (ms):") != std::string_view::npos) return LogFormat::megatron_lm;
  if (text.find("elapsed_time_per_iteration_ms:") != std::string_view::npos) return LogFormat::nanotron;
  if (text.find("tps:") != std::string_view::npos && text.find("step:") != std::string_view::npos)
    return LogFormat::torchtitan;
  throw ConfigError(Problem{file, "", "no line with a step time",
                            "a log of Megatron-LM ('elapsed time per iteration (ms):'), nanotron "
                            "('elapsed_time_per_iteration_ms:') or torchtitan ('step: ... tps:')",
                            "steps must be logged, not only losses"});
}

struct Checker {
  const RunLog& log;
  std::vector<Problem> problems{};

  void set(const char* column, int& target, bool known, const char* where) {
    const auto it = log.says.find(column);
    if (it == log.says.end()) return;
    if (known && it->second != target)
      problems.push_back({log.file, column, fmt::format("{}", it->second),
                          fmt::format("{}, as {} says", target, where), "one of the two is another run's"});
    else
      target = static_cast<int>(it->second);
  }
};

}  // namespace

RunLog parse_run_log(std::string_view text, const std::string& file) {
  RunLog log;
  log.file = file;
  log.format = format_of(text, file);
  each_line(text, [&](std::string_view line) {
    if (log.format == LogFormat::megatron_lm) read_megatron(line, log);
    if (log.format == LogFormat::torchtitan) read_torchtitan(line, log);
    if (log.format == LogFormat::nanotron) read_nanotron(line, log);
  });
  if (log.step_s.empty() && log.tokens_per_s_gpu.empty())
    throw ConfigError(Problem{file, "", "no step time that can be read", "at least one logged step", ""});
  return log;
}

RunLog read_run_log(const std::filesystem::path& path) {
  return parse_run_log(read_text_file(path), path.string());
}

void apply_log(const RunLog& log, ModelSpec& model, TrainingSpec& training, ParallelPlan& plan,
               bool plan_known, bool batch_known) {
  Checker c{log};
  c.set("layers", model.n_layers, true, "--model");
  c.set("hidden", model.hidden, true, "--model");
  c.set("heads", model.n_heads, true, "--model");
  c.set("ffn_hidden", model.ffn_hidden, true, "--model");
  c.set("seq_len", training.seq_len, batch_known, "--seq-len");
  c.set("global_batch", training.global_batch, batch_known, "--global-batch");
  c.set("tp", plan.tp, plan_known, "--plan");
  c.set("pp", plan.pp, plan_known, "--plan");
  c.set("cp", plan.cp, plan_known, "--plan");
  c.set("dp", plan.dp, plan_known, "--plan");
  c.set("micro_batch", plan.micro_batch, plan_known, "--plan");
  if (!c.problems.empty()) throw ConfigError(std::move(c.problems));
  if (plan_known) return;
  c.set("zero_stage", plan.zero_stage, false, "");
  c.set("virtual_stages", plan.vp, false, "");
  const auto says = [&](const char* column) {
    const auto it = log.says.find(column);
    return it == log.says.end() ? std::int64_t{-1} : it->second;
  };
  if (const auto per_chunk = says("layers_per_chunk"); per_chunk > 0 && plan.pp > 0)
    plan.vp = std::max<int>(1, model.n_layers / (plan.pp * static_cast<int>(per_chunk)));
  plan.schedule = plan.vp > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_f_one_b;
  plan.sequence_parallel = plan.tp > 1 && says("sequence_parallel") == 1;
  if (const auto shard = says("shard_degree"); shard > 1 && shard < plan.dp)
    plan.shard_degree = static_cast<int>(shard);
  if (says("recompute") == 1) plan.recompute.kind = RecomputeKind::selective;
  if (says("recompute") == 2) plan.recompute.kind = RecomputeKind::full;
}

Seconds steady_step(const RunLog& log, const TrainingSpec& training, const ParallelPlan& plan) {
  std::vector<double> steps = log.step_s;
  if (steps.empty()) {
    const double tokens = static_cast<double>(training.global_batch) * training.seq_len / plan.world();
    for (const double rate : log.tokens_per_s_gpu) steps.push_back(tokens / rate);
  }
  const std::size_t skipped = steps.size() > 4 ? std::max<std::size_t>(2, steps.size() / 10) : 0;
  steps.erase(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(skipped));
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end());
  return Seconds(*middle);
}

bool is_nccl_table(std::string_view text) {
  return text.find("busbw") != std::string_view::npos && text.find("algbw") != std::string_view::npos;
}

NcclTable parse_nccl_table(std::string_view text, const std::string& file) {
  NcclTable table;
  table.file = file;
  std::map<std::string, int> hosts;
  bool reduces = true;
  double bus_over_algorithm = 0;
  each_line(text, [&](std::string_view line) {
    if (const std::size_t at = line.find("Rank "); at != std::string_view::npos) {
      if (const std::size_t on = line.find(" on ", at); on != std::string_view::npos) {
        std::string_view host = line.substr(on + 4);
        host.remove_prefix(std::min(host.find_first_not_of(' '), host.size()));
        ++hosts[std::string(host.substr(0, host.find(' ')))];
        ++table.ranks;
      }
      return;
    }
    // size count type redop [root] time algbw busbw ...
    std::vector<std::string_view> cells;
    for (std::string_view rest = line; !rest.empty();) {
      rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r"), rest.size()));
      const std::size_t end = std::min(rest.find_first_of(" \t\r"), rest.size());
      if (end > 0) cells.push_back(rest.substr(0, end));
      rest.remove_prefix(end);
    }
    if (cells.size() < 7) return;
    const auto integer = [](std::string_view s) {
      std::int64_t x = -1;
      const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), x);
      return error == std::errc() && end == s.data() + s.size() ? x : -1;
    };
    const auto real = [](std::string_view s) { return number_after(s, "").value_or(-1); };
    const std::int64_t bytes = integer(cells[0]), count = integer(cells[1]);
    if (bytes <= 0 || count <= 0 || integer(cells[2]) >= 0) return;
    reduces = cells[3] != "none";
    // The root is a whole number, a time is not always; older versions print no root.
    const std::size_t time = cells[4] == "-1" || cells.size() >= 13 ? 5 : 4;
    if (time + 2 >= cells.size()) return;
    const double us = real(cells[time]), algorithm = real(cells[time + 1]), bus = real(cells[time + 2]);
    if (us <= 0) return;
    table.samples.push_back({bytes, us * 1e-6});
    if (algorithm > 1) bus_over_algorithm = bus / algorithm;
  });
  table.nodes = static_cast<int>(hosts.size());
  // nccl-tests does not print its own name in every version; its factors do: 2(n-1)/n for all_reduce, (n-1)/n else.
  table.kind = !reduces                    ? CollectiveKind::all_gather
               : bus_over_algorithm >= 1.0 ? CollectiveKind::all_reduce
                                           : CollectiveKind::reduce_scatter;
  if (table.samples.empty() || table.ranks < 2)
    throw ConfigError(Problem{file, "",
                              fmt::format("{} sizes of {} ranks", table.samples.size(), table.ranks),
                              "output of nccl-tests with its list of ranks and at least one size", ""});
  return table;
}

}  // namespace sextant
