#include "core/runs/run_row.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "core/base/csv.hpp"
#include "core/base/decimal.hpp"
#include "core/base/error.hpp"
#include "core/base/words.hpp"

namespace sextant {

namespace {

constexpr std::array<std::string_view, 27> kRequired = {
    "run_id",    "source",    "date",          "framework",     "model",        "layers",
    "hidden",    "heads",     "kv_heads",      "ffn_hidden",    "mlp",          "vocab",
    "seq_len",   "gpu",       "nodes",         "gpus_per_node", "tp",           "cp",
    "pp",        "dp",        "zero_stage",    "micro_batch",   "global_batch", "recompute",
    "attention", "precision", "virtual_stages"};

// Spreadsheets write whole numbers as 4096.0 as well.
std::optional<long long> whole_number(const std::string& text) {
  constexpr long long kMost = std::numeric_limits<int>::max();
  const auto x = parse_decimal(text);
  if (!x || *x < 0 || *x > static_cast<double>(kMost) || *x != std::floor(*x)) return std::nullopt;
  return static_cast<long long>(*x);
}

// Reads the cells of one row, collecting what is wrong.
class Cells {
 public:
  Cells(const CsvTable& table, const CsvRow& row, std::vector<Problem>& problems)
      : table_(table), row_(row), problems_(problems) {}

  const std::string& text(std::string_view column) const { return table_.cell(row_, column); }

  // The default bound is that of degrees; products of them are taken in 64 bits.
  int count(std::string_view column, int least, int most = kMaxDegree) {
    const std::string& s = text(column);
    if (s.empty() && table_.column(column) < 0) return 0;
    const auto n = whole_number(s);
    if (!n || *n < least || *n > most) {
      wrong(column, fmt::format("a whole number from {} to {}", least, most));
      return std::max(least, 1);
    }
    return static_cast<int>(*n);
  }

  // The same; an empty cell says what is usual.
  int count_or(int usual, std::string_view column, int least, int most = kMaxDegree) {
    return text(column).empty() && table_.column(column) >= 0 ? usual : count(column, least, most);
  }

  // 0 and 1, as words too; nothing is no.
  bool flag(std::string_view column) {
    const std::string s = lower(text(column));
    if (s.empty()) return false;
    if (s == "true" || s == "yes") return true;
    return s != "false" && s != "no" && count(column, 0) != 0;
  }

  // Empty cells are "not stated"; what is stated must be a positive number.
  std::optional<double> positive(std::string_view column) {
    const std::string& s = text(column);
    if (s.empty()) return std::nullopt;
    const auto x = parse_decimal(s);
    if (x && *x >= kSmallestNumber) return x;
    wrong(column, x && *x > 0 ? fmt::format("a number of at least {}, or nothing", kSmallestNumber)
                              : "a positive number, or nothing");
    return std::nullopt;
  }

  template <class T, std::size_t N>
  T choice(std::string_view column, const std::array<std::pair<std::string_view, T>, N>& choices,
           T fallback) {
    const std::string s = lower(text(column));
    for (const auto& [name, value] : choices)
      if (name == s) return value;
    std::string names;
    for (const auto& [name, value] : choices)
      names += (names.empty() ? "" : ", ") + (name.empty() ? std::string("nothing") : std::string(name));
    wrong(column, "one of " + names);
    return fallback;
  }

  std::vector<std::string> list(std::string_view column, char separator) const {
    std::vector<std::string> out;
    const std::string s = lower(text(column));
    for (std::size_t at = 0; at < s.size();) {
      const std::size_t end = std::min(s.find(separator, at), s.size());
      if (end > at) out.push_back(s.substr(at, end - at));
      at = end + 1;
    }
    return out;
  }

  // Whether every column has its cell; says so when not.
  bool complete() {
    if (row_.cells.size() == table_.columns.size()) return true;
    problems_.push_back({table_.file, fmt::format("line {}", row_.line),
                         fmt::format("{} cells", row_.cells.size()),
                         fmt::format("{}, as the header line has", table_.columns.size()), ""});
    return false;
  }

  void wrong(std::string_view column, std::string expected) {
    problems_.push_back({fmt::format("{}:{}", table_.file, row_.line), std::string(column), text(column),
                         std::move(expected), ""});
  }

 private:
  const CsvTable& table_;
  const CsvRow& row_;
  std::vector<Problem>& problems_;
};

ModelSpec read_model(Cells& c) {
  ModelSpec m;
  m.name = c.text("model");
  m.n_layers = c.count("layers", 1, 10'000);
  m.hidden = c.count("hidden", 1, 1 << 18);
  m.n_heads = c.count("heads", 1, 1 << 13);
  m.n_kv_heads = c.count_or(m.n_heads, "kv_heads", 1, 1 << 13);
  m.ffn_hidden = c.count("ffn_hidden", 1);
  m.vocab_size = c.count("vocab", 1, 1 << 24);
  if (m.hidden % m.n_heads != 0) c.wrong("heads", fmt::format("a divisor of hidden = {}", m.hidden));
  if (m.n_heads % m.n_kv_heads != 0) c.wrong("kv_heads", fmt::format("a divisor of heads = {}", m.n_heads));
  m.head_dim = std::max(1, m.hidden / m.n_heads);
  using Mlp = std::pair<std::string_view, bool>;
  m.gated_mlp = c.choice("mlp", std::array{Mlp{"gated", true}, Mlp{"plain", false}}, true);
  m.tied_embeddings = c.flag("tied_embeddings");
  if (!m.gated_mlp) {  // the plain rows are GPT-style
    m.norm = NormKind::layer;
    m.position = PositionKind::learned;
    m.linear_bias = true;
  }
  m.max_positions = std::max(c.count("seq_len", 1, kMaxSeqLen), 1);
  return m;
}

TrainingSpec read_training(Cells& c) {
  TrainingSpec t;
  t.stack.clear();
  t.seq_len = c.count("seq_len", 1, kMaxSeqLen);
  t.global_batch = c.count("global_batch", 1, kMaxGlobalBatch);
  using Precision = std::pair<std::string_view, Dtype>;
  t.compute = c.choice("precision",
                       std::array{Precision{"bf16", Dtype::bf16}, Precision{"bfloat16", Dtype::bf16},
                                  Precision{"fp16", Dtype::fp16}, Precision{"float16", Dtype::fp16},
                                  Precision{"fp32", Dtype::fp32}, Precision{"fp8", Dtype::fp8},
                                  Precision{"fp8_rowwise", Dtype::fp8}, Precision{"mxfp8", Dtype::fp8}},
                       Dtype::bf16);
  t.parameter = t.compute == Dtype::fp8 ? Dtype::bf16 : t.compute;
  return t;
}

// What a plan cannot say is read as the share of whole layers that costs as much to compute again: some layers fully
// (which ones is not stated) as half of them, the MLP alone as two thirds.
Recompute read_recompute(Cells& c, const ParallelPlan& p, int layers) {
  struct Policy {
    RecomputeKind kind = RecomputeKind::none;
    double share = 1;  // of the layers
  };
  const std::string stated = lower(c.text("recompute"));
  if (stated == "no" || stated == "false") return {};
  if (stated == "yes" || stated == "true") return {RecomputeKind::full, -1};
  using Kind = std::pair<std::string_view, Policy>;
  const Policy policy =
      c.choice("recompute",
               std::array{Kind{"none", {}}, Kind{"", {}}, Kind{"selective", {RecomputeKind::selective}},
                          Kind{"selective:op", {RecomputeKind::selective}},
                          Kind{"selective:layer", {RecomputeKind::full, 1.0 / 2}},
                          Kind{"selective:mlp", {RecomputeKind::full, 2.0 / 3}},
                          Kind{"selective:mlp+attn", {RecomputeKind::full, 1}},
                          Kind{"full", {RecomputeKind::full, 1}}},
               Policy{});
  if (policy.kind != RecomputeKind::full || policy.share >= 1) return {policy.kind, -1};
  const double chunk = static_cast<double>(layers) / (static_cast<double>(p.pp) * p.vp);
  return {policy.kind, std::max(1, static_cast<int>(std::lround(policy.share * chunk)))};
}

// A digit, or as frameworks say it: "ZeRO-1", "stage 2", "FSDP".
int read_zero_stage(Cells& c) {
  const std::string& stated = c.text("zero_stage");
  std::string word;
  for (const char letter : lower(stated))
    if (letter != '-' && letter != '_' && letter != ' ') word += letter;
  if (word == "fsdp") return 3;
  for (const std::string_view before : {"zerostage", "zero", "stage"})
    if (word.size() == before.size() + 1 && word.starts_with(before) && word.back() >= '0' &&
        word.back() <= '3')
      return word.back() - '0';
  const int stage = c.count("zero_stage", 0);
  if (stage > 3) c.wrong("zero_stage", "0 to 3");
  return stage;
}

PipelineSchedule read_schedule(const Cells& c, int vp) {
  const std::string stated = lower(c.text("pipeline_schedule"));
  if (vp > 1) return PipelineSchedule::interleaved;
  if (stated == "gpipe" || stated == "afab") return PipelineSchedule::gpipe;
  // Its V form has two chunks a rank, which no plan expresses.
  const bool zero_bubble =
      (stated.starts_with("zb") && stated.find('v') == stated.npos) || stated.starts_with("zero");
  return zero_bubble ? PipelineSchedule::zero_bubble : PipelineSchedule::one_f_one_b;
}

void read_layout(Cells& c, ParallelPlan& p, int layers) {
  p.tp = c.count("tp", 1);
  p.cp = c.count_or(1, "cp", 1);
  p.pp = c.count("pp", 1);
  p.vp = c.count_or(1, "virtual_stages", 1);
  p.dp = c.count_or(0, "dp", 1);
  p.schedule = p.pp > 1 ? read_schedule(c, p.vp) : PipelineSchedule::one_f_one_b;
  p.sequence_parallel = p.tp > 1 && c.flag("sequence_parallel");
  p.zero_stage = read_zero_stage(c);
  p.shard_degree = c.text("shard_degree").empty() ? 0 : c.count("shard_degree", 1);
  p.micro_batch = c.count("micro_batch", 1);
  p.recompute = read_recompute(c, p, layers);
}

void read_facts(Cells& c, RunRow& r) {
  using Kernel = std::pair<std::string_view, std::optional<AttentionKernel>>;
  r.attention = c.choice(
      "attention",
      std::array{Kernel{"", std::nullopt}, Kernel{"unknown", std::nullopt},
                 Kernel{"flash1", AttentionKernel::flash1}, Kernel{"flash2", AttentionKernel::flash2},
                 Kernel{"flashattention-2", AttentionKernel::flash2}, Kernel{"sdpa", AttentionKernel::flash2},
                 Kernel{"flash3", AttentionKernel::flash3}, Kernel{"cudnn", AttentionKernel::cudnn},
                 Kernel{"fused", AttentionKernel::fused_softmax},
                 Kernel{"unfused", AttentionKernel::unfused}},
      std::optional<AttentionKernel>{});
  using Norm = std::pair<std::string_view, std::optional<bool>>;
  r.norm_fused = c.choice("norm_kernel",
                          std::array{Norm{"", std::nullopt}, Norm{"unknown", std::nullopt},
                                     Norm{"fused", true}, Norm{"unfused", false}},
                          std::optional<bool>{});
  using Gradient = std::pair<std::string_view, std::optional<Dtype>>;
  r.gradient = c.choice("grad_dtype",
                        std::array{Gradient{"", std::nullopt}, Gradient{"bf16", Dtype::bf16},
                                   Gradient{"fp16", Dtype::fp16}, Gradient{"fp32", Dtype::fp32}},
                        std::optional<Dtype>{});
  const auto overlap = c.list("overlap", ',');
  const auto has = [&](const char* what) {
    return std::find(overlap.begin(), overlap.end(), what) != overlap.end();
  };
  for (const auto& what : overlap)
    if (what != "dp_grad" && what != "param_gather" && what != "tp" && what != "pp" && what != "none")
      c.wrong("overlap", "none, or a list of dp_grad, param_gather, tp, pp");
  r.overlap_stated = !overlap.empty();
  r.data_overlap_stated = has("dp_grad") || has("param_gather") || has("none");
  r.plan.overlap_grad_reduce = has("dp_grad");
  r.plan.overlap_param_gather = has("param_gather");
  r.plan.overlap_tp = has("tp");
  for (const auto& what : c.list("offload", ',')) {
    if (what == "optimizer")
      r.plan.optimizer_offload = 1.0;
    else if (what == "parameters")
      r.plan.parameter_offload = true;
    else if (what == "activations")
      r.plan.activation_offload = std::max(1, r.model.n_layers / (r.plan.pp * r.plan.vp));
    else if (what != "none")
      c.wrong("offload", "none, or a list of optimizer, parameters, activations");
  }
}

RunRow named_row(const Cells& c) {
  RunRow r;
  r.run_id = c.text("run_id");
  r.source = c.text("source");
  r.date = c.text("date");
  return r;
}

RunRow read_row(Cells& c) {
  RunRow r = named_row(c);
  r.framework = c.text("framework");
  r.group_id = c.text("group_id");
  r.notes = c.text("notes");
  if (r.run_id.empty()) c.wrong("run_id", "a unique name");
  const std::string& quality = c.text("quality");
  if (!quality.empty()) r.quality = quality[0];
  r.model = read_model(c);
  r.training = read_training(c);
  read_layout(c, r.plan, r.model.n_layers);
  read_facts(c, r);
  r.recompute_by_operation = lower(c.text("recompute")) == "selective:op";
  if (r.gradient) r.training.gradient = r.training.reduction = *r.gradient;
  r.gpu = c.text("gpu");
  r.fabric = c.text("fabric");
  r.precision = c.text("precision");
  if (r.gpu.empty()) c.wrong("gpu", "a device preset");
  r.nodes = c.count("nodes", 1);
  r.gpus_per_node = c.count("gpus_per_node", 1);
  if (const auto nominal = c.positive("internode_GBps_per_node"))
    r.node_network = BytesPerSecond(*nominal * 1e9);
  ParallelPlan& p = r.plan;
  const std::int64_t gpus = std::int64_t{r.nodes} * r.gpus_per_node;
  if (p.dp == 0)  // not stated: what is left
    p.dp =
        static_cast<int>(std::clamp<std::int64_t>(gpus / (std::int64_t{p.tp} * p.cp * p.pp), 1, kMaxDegree));
  const std::int64_t at_once = std::int64_t{p.micro_batch} * p.dp;
  const double world = double{1} * p.tp * p.cp * p.pp * p.dp;
  if (world != static_cast<double>(gpus) || gpus > kMaxWorld)
    c.wrong("dp", fmt::format("tp*cp*pp*dp = nodes*gpus_per_node = {}, at most {}", gpus, kMaxWorld));
  if (r.training.global_batch % at_once != 0)
    c.wrong("global_batch", fmt::format("a multiple of micro_batch*dp = {}", at_once));
  r.assumed = c.list("assumed", ';');
  const auto step = c.positive("step_time_s"), rate = c.positive("tokens_per_s_per_gpu");
  if (step)
    r.step_time = Seconds(*step);
  else if (rate)
    r.step_time = Seconds(double{1} * r.training.global_batch * r.training.seq_len / (*rate * world));
  // Wide enough for any step; whether it is one of this model on these devices, planner/validation/plausible asks.
  constexpr double kShortest = 1e-6, kLongest = 1e7;
  if (r.step_time && (r.step_time->v < kShortest || r.step_time->v > kLongest))
    c.wrong(step ? "step_time_s" : "tokens_per_s_per_gpu",
            fmt::format("a time of one whole step from {:g} to {:g} s", kShortest, kLongest));
  r.peak_memory_GiB = c.positive("peak_memory_GiB");
  r.memory_kind = c.text("memory_kind");
  using Outcome = std::pair<std::string_view, bool>;
  r.out_of_memory =
      c.choice("outcome", std::array{Outcome{"ok", false}, Outcome{"oom", true}, Outcome{"", false}}, false);
  return r;
}

}  // namespace

std::vector<RunRow> runs_of(const CsvTable& table, BadRows bad) {
  std::vector<Problem> problems;
  for (const std::string_view name : kRequired)
    if (table.column(name) < 0)
      problems.push_back(
          {table.file, std::string(name), "", "this column",
           closest(name, table.columns).empty() ? "" : "is it " + closest(name, table.columns) + "?"});
  if (problems.size() > kRequired.size() / 2)
    throw ConfigError(Problem{table.file, "line 1", fmt::format("{} columns", table.columns.size()),
                              fmt::format("the columns of a run file: {}", fmt::join(kRequired, ", ")),
                              "an example: sextant validate --example"});
  if (!problems.empty()) throw ConfigError(std::move(problems));
  std::vector<RunRow> rows;
  constexpr std::size_t kEnoughProblems = 20;
  bool sound = false;
  for (const CsvRow& row : table.rows) {
    std::vector<Problem> here;
    Cells cells(table, row, here);
    RunRow& run = rows.emplace_back(cells.complete() ? read_row(cells) : named_row(cells));
    run.file = table.file;
    run.line = row.line;
    for (const Problem& p : here) run.unreadable += (run.unreadable.empty() ? "" : "; ") + to_string(p);
    sound = sound || here.empty();
    if (problems.size() < kEnoughProblems) std::move(here.begin(), here.end(), std::back_inserter(problems));
    if (bad == BadRows::refuse && problems.size() >= kEnoughProblems) break;
  }
  if (!problems.empty() && (bad == BadRows::refuse || !sound)) throw ConfigError(std::move(problems));
  return rows;
}

std::vector<RunRow> read_runs(const std::filesystem::path& path, BadRows bad) {
  return runs_of(read_csv(path, bad), bad);
}

}  // namespace sextant
