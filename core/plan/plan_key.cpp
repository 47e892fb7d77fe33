#include "core/plan/plan_key.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/base/words.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/plan_rules.hpp"

namespace sextant {
namespace {

constexpr std::size_t kMaxKeyLength = 1 << 16;

// A part that is letters and a whole number.
struct NumberPart {
  std::string_view letters;
  int ParallelPlan::*field;
  int least, most;
};
constexpr std::array kNumbers = {
    NumberPart{"tp", &ParallelPlan::tp, 1, kMaxDegree},
    NumberPart{"pp", &ParallelPlan::pp, 1, kMaxDegree},
    NumberPart{"vp", &ParallelPlan::vp, 1, kMaxDegree},
    NumberPart{"cp", &ParallelPlan::cp, 1, kMaxDegree},
    NumberPart{"dp", &ParallelPlan::dp, 1, kMaxDegree},
    NumberPart{"z", &ParallelPlan::zero_stage, 0, 3},
    NumberPart{"mbs", &ParallelPlan::micro_batch, 1, kMaxDegree},
    NumberPart{"sd", &ParallelPlan::shard_degree, 1, kMaxDegree},
    NumberPart{"ao", &ParallelPlan::activation_offload, 0, kMaxDegree},
    NumberPart{"hz", &ParallelPlan::offload_horizon, 0, kMaxDegree},
    NumberPart{"lb", &ParallelPlan::last_bucket_split, 1, kMaxDegree},
};

// A part that is one word; `slot` tells which words exclude each other.
struct WordPart {
  std::string_view word, slot;
  void (*apply)(ParallelPlan&);
};
constexpr std::array kWords = {
    WordPart{"sel", "recompute", [](ParallelPlan& p) { p.recompute.kind = RecomputeKind::selective; }},
    WordPart{"sp", "sp", [](ParallelPlan& p) { p.sequence_parallel = true; }},
    WordPart{"nosp", "sp", [](ParallelPlan& p) { p.sequence_parallel = false; }},
    WordPart{"1f1b", "schedule", [](ParallelPlan& p) { p.schedule = PipelineSchedule::one_f_one_b; }},
    WordPart{"int", "schedule", [](ParallelPlan& p) { p.schedule = PipelineSchedule::interleaved; }},
    WordPart{"gpipe", "schedule", [](ParallelPlan& p) { p.schedule = PipelineSchedule::gpipe; }},
    WordPart{"zb", "schedule", [](ParallelPlan& p) { p.schedule = PipelineSchedule::zero_bubble; }},
    WordPart{"po", "po", [](ParallelPlan& p) { p.parameter_offload = true; }},
    WordPart{"nogr", "gr", [](ParallelPlan& p) { p.overlap_grad_reduce = false; }},
    WordPart{"nopg", "pg", [](ParallelPlan& p) { p.overlap_param_gather = false; }},
    WordPart{"tpo", "tpo", [](ParallelPlan& p) { p.overlap_tp = true; }},
};

// What people write into a key that is no part of a layout, or has another word there.
struct NoPart {
  std::array<std::string_view, 4> words;
  std::string_view hint;
};
constexpr std::array kNoParts = {
    NoPart{{"ep", "etp"}, "no experts are planned with: every layer is dense"},
    NoPart{{"gas", "acc"},
           "how many micro-batches a replica has follows from --global-batch: mbs times dp times as many"},
    NoPart{{"gbs", "gb"}, "--global-batch N states the batch"},
    NoPart{{"seq"}, "--seq-len N states the sequence length"},
    NoPart{{"fp8"}, "--precision fp8 states the number format"},
    NoPart{{"bf16"}, "--precision bf16-mixed or bf16-pure states the number format"},
    NoPart{{"recompute", "rec", "ac", "ckpt"},
           "sel is selective recomputation, full or full12 that of whole layers"},
    NoPart{{"offload", "cpu"},
           "oo100 has the optimizer on the host, po the parameters, ao8 the activations of 8 layers of a "
           "chunk"},
    NoPart{{"hsdp"}, "z3 with sd8 shards state over 8 of the replicas"},
};

PipelineSchedule usual_schedule(const ParallelPlan& p) {
  return p.vp > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_f_one_b;
}

std::string count_text(std::int64_t n) {
  for (const auto& [unit, letter] : {std::pair{1'000'000'000, 'G'}, {1'000'000, 'M'}, {1'000, 'K'}})
    if (n % unit == 0) return fmt::format("{}{}", n / unit, letter);
  return fmt::format("{}", n);
}

std::optional<std::int64_t> parse_count_text(std::string_view text) {
  std::int64_t unit = 1;
  if (text.ends_with('k')) unit = 1'000;
  if (text.ends_with('m')) unit = 1'000'000;
  if (text.ends_with('g')) unit = 1'000'000'000;
  if (unit > 1) text.remove_suffix(1);
  const auto n = parse_count(text, std::numeric_limits<std::int64_t>::max() / unit);
  return n ? std::optional(*n * unit) : std::nullopt;
}

// Equal neighbours are joined from three on: 11-13-13-11 stays, 8-8-8-8 becomes 8x4.
std::string list_text(const std::vector<int>& numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t run = 1;
    while (i + run < numbers.size() && numbers[i + run] == numbers[i]) ++run;
    if (run < 3) run = 1;
    if (i > 0) out += '-';
    out += run == 1 ? fmt::format("{}", numbers[i]) : fmt::format("{}x{}", numbers[i], run);
    i += run;
  }
  return out;
}

// At most `most_numbers` of them, whose sum is at most `most_in_all`.
std::optional<std::vector<int>> parse_list(std::string_view text, long long most_numbers,
                                           long long most_in_all) {
  std::vector<int> numbers;
  long long total = 0;
  for (const auto item : split(text, '-')) {
    const auto x = item.find('x');
    const auto number = parse_count(item.substr(0, x), most_in_all);
    const auto repeats = x == item.npos ? std::optional(1LL) : parse_count(item.substr(x + 1), most_numbers);
    if (!number || !repeats || *repeats == 0) return std::nullopt;
    total += *number * *repeats;
    if (total > most_in_all || static_cast<long long>(numbers.size()) + *repeats > most_numbers)
      return std::nullopt;
    numbers.insert(numbers.end(), static_cast<std::size_t>(*repeats), static_cast<int>(*number));
  }
  return numbers;
}

std::optional<std::array<Axis, 4>> parse_axes(std::string_view text) {
  const auto names = split(text, '-');
  std::array<Axis, 4> order{};
  std::array<bool, 4> seen{};
  if (names.size() != 4) return std::nullopt;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto at = std::find(kAxisNames.begin(), kAxisNames.end(), names[i]) - kAxisNames.begin();
    if (at == 4 || seen[static_cast<std::size_t>(at)]) return std::nullopt;
    seen[static_cast<std::size_t>(at)] = true;
    order[i] = static_cast<Axis>(at);
  }
  return order;
}

// Reads the parts one by one and keeps every problem.
class KeyParser {
 public:
  explicit KeyParser(std::string_view key) : key_(key) {}

  ParallelPlan parse() {
    if (key_.empty() || key_.size() > kMaxKeyLength)
      wrong(key_.empty() ? "" : "a very long text", "parts such as tp4.pp8.vp5.cp1.dp2.z1.mbs1.sel");
    else
      for (const auto part : split(key_, '.')) read(part);
    if (!seen("sp")) plan_.sequence_parallel = plan_.tp > 1;
    if (!seen("schedule")) plan_.schedule = usual_schedule(plan_);
    if (problems_.empty() && !degrees_fit(plan_))
      wrong(key_, fmt::format("at most {} ranks (tp * cp * pp * dp) and {} chunks (pp * vp)", kMaxWorld,
                              kMaxChunks));
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
    return plan_;
  }

  // The slots that the key had a part of: "dp", "recompute", "gr"; and whether it had one. After parse().
  std::vector<std::string> parts() const { return {seen_.begin(), seen_.end()}; }
  bool seen(std::string_view slot) const {
    return std::find(seen_.begin(), seen_.end(), slot) != seen_.end();
  }

 private:
  void read(std::string_view original) {
    std::string part(original);
    std::transform(part.begin(), part.end(), part.begin(),
                   [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
    for (const auto& w : kWords)
      if (part == w.word) {
        if (once(w.slot, original)) w.apply(plan_);
        return;
      }
    const auto letters_end = part.find_first_not_of("abcdefghijklmnopqrstuvwxyz");
    const std::string letters = part.substr(0, letters_end);
    const std::string rest = letters_end == part.npos ? "" : part.substr(letters_end);
    for (const auto& n : kNumbers)
      if (letters == n.letters) {
        if (!once(n.letters, original)) return;
        const auto value = parse_count(rest, n.most);
        if (value && *value >= n.least)
          plan_.*n.field = static_cast<int>(*value);
        else
          wrong(original, fmt::format("{} and a whole number from {} to {}", letters, n.least, n.most));
        return;
      }
    if (letters == "full") return read_full(original, rest);
    if (letters == "oo") return read_offload(original, rest);
    if (letters == "b") {
      if (!once("b", original)) return;
      if (const auto n = parse_count_text(rest); n && *n > 0) return void(plan_.bucket_elements = *n);
      return wrong(original, "b and a number of elements such as b40M, b512K or b1000");
    }
    if (letters == "ax") {
      if (!once("ax", original)) return;
      if (const auto order =
              rest.starts_with('-') ? parse_axes(std::string_view(rest).substr(1)) : std::nullopt)
        return void(plan_.axis_order = *order);
      return wrong(original, "the four axes once each, innermost first, such as ax-tp-cp-dp-pp");
    }
    if (letters == "l") {
      if (!once("L", original)) return;
      if (const auto layers = parse_list(rest, kMaxChunks, kMaxLayers))
        return void(plan_.chunks = chunks_of(*layers));
      return wrong(original, "layers of each chunk such as L11-13-13-11 or L7-8x14-7");
    }
    if (letters == "ga") {
      if (!once("ga", original)) return;
      if (auto counts = parse_list(rest, kMaxDegree, kMaxDegree))
        return void(plan_.replica_microbatches = std::move(*counts));
      return wrong(original, "micro-batches of each replica such as ga9x7-5");
    }
    if (letters == "sw") {
      if (!once("sw", original)) return;
      auto weights = parse_list(rest, kMaxDegree, std::int64_t{kMaxDegree} * kMaxShardWeight);
      if (weights && std::ranges::min(*weights) >= 1 && std::ranges::max(*weights) <= kMaxShardWeight)
        return void(plan_.shard_weights = std::move(*weights));
      return wrong(original,
                   fmt::format("weights of the shards from 1 to {}, such as sw2x7-1", kMaxShardWeight));
    }
    unknown(original, letters, rest);
  }

  void read_full(std::string_view original, const std::string& rest) {
    if (!once("recompute", original)) return;
    plan_.recompute.kind = RecomputeKind::full;
    if (rest.empty()) return;
    if (const auto n = parse_count(rest, kMaxLayers); n && *n > 0)
      plan_.recompute.layers = static_cast<int>(*n);
    else
      wrong(original, "full, or full and the layers of each chunk such as full12");
  }

  void read_offload(std::string_view original, std::string rest) {
    if (!once("oo", original)) return;
    const bool ends = !rest.empty() && rest.back() != 'p';
    std::replace(rest.begin(), rest.end(), 'p', '.');
    const auto share = ends ? parse_decimal(rest, 2) : std::nullopt;
    if (share && *share <= 1 && (*share == 0 || *share >= kSmallestNumber))
      plan_.optimizer_offload = *share;
    else
      wrong(original, "oo and a percentage from 0 to 100 such as oo50 or oo12p5");
  }

  void unknown(std::string_view original, const std::string& letters, const std::string& rest) {
    std::vector<std::string> words, prefixes{"full", "oo", "b", "ax", "L", "ga", "sw"};
    for (const auto& w : kWords) words.emplace_back(w.word);
    for (const auto& n : kNumbers) prefixes.insert(prefixes.end() - 7, std::string(n.letters));
    std::string near = rest.empty() ? closest(letters, words) : "";
    if (near.empty() && !letters.empty())
      if (const auto prefix = closest(letters, prefixes); !prefix.empty()) near = prefix + rest;
    if (near.empty()) near = closest(original, words);
    std::string hint = near.empty() ? "" : fmt::format("did you mean {}?", near);
    for (const NoPart& part : kNoParts)
      for (const std::string_view word : part.words)
        if (!word.empty() && (letters == word || letters + rest == word)) hint = part.hint;
    problems_.push_back({"", fmt::format("plan key {}", key_),
                         original.empty() ? "an empty part" : fmt::format("the unknown part '{}'", original),
                         "parts such as tp4.pp8.vp5.cp1.dp2.z1.mbs1.sel", std::move(hint)});
  }

  bool once(std::string_view slot, std::string_view original) {
    if (seen(slot)) {
      wrong(original, fmt::format("{} only once", slot));
      return false;
    }
    seen_.push_back(slot);
    return true;
  }
  void wrong(std::string_view value, std::string expected) {
    const bool shown = !key_.empty() && key_.size() <= kMaxKeyLength;
    problems_.push_back({"", shown ? fmt::format("plan key {}", key_) : "plan key",
                         value.empty() ? "nothing" : fmt::format("'{}'", value), std::move(expected), ""});
  }

  std::string_view key_;
  ParallelPlan plan_;
  std::vector<std::string_view> seen_;
  std::vector<Problem> problems_;
};

}  // namespace

void hint_unequal_replicas(std::vector<Problem>& problems, const StackSpec& stack, const ParallelPlan& p,
                           int global_batch) {
  const auto problem = std::ranges::find(problems, kBatchOfReplicas, &Problem::key);
  if (problem == problems.end() || !stack.can.uneven_microbatches || p.micro_batch < 1 || p.dp < 1) return;
  const int all = global_batch / p.micro_batch, each = all / p.dp;
  if (global_batch % p.micro_batch != 0 || each == 0) return;
  std::vector<int> counts(static_cast<std::size_t>(p.dp), each);
  std::fill_n(counts.begin(), all % p.dp, each + 1);
  problem->hint = fmt::format("{} deals it to unequal replicas: add ga{} to the key{}", stack.name,
                              list_text(counts), p.zero_stage > 1 ? ", with z1" : "");
}

std::string cut_text(const std::vector<int>& layers) { return "L" + list_text(layers); }

std::string plan_key(const ParallelPlan& p) {
  std::string key = fmt::format("tp{}.pp{}.vp{}.cp{}.dp{}.z{}.mbs{}", p.tp, p.pp, p.vp, p.cp, p.dp,
                                p.zero_stage, p.micro_batch);
  const auto part = [&key](bool differs, std::string_view text) {
    if (differs) (key += '.') += text;
  };
  part(p.recompute.kind == RecomputeKind::selective, "sel");
  part(p.recompute.kind == RecomputeKind::full,
       p.recompute.layers < 0 ? "full" : fmt::format("full{}", p.recompute.layers));
  part(p.sequence_parallel != (p.tp > 1), p.sequence_parallel ? "sp" : "nosp");
  constexpr std::array<std::string_view, 4> schedules = {"1f1b", "int", "gpipe", "zb"};
  part(p.schedule != usual_schedule(p), schedules[static_cast<std::size_t>(p.schedule)]);
  part(p.shard_degree != 0, fmt::format("sd{}", p.shard_degree));
  if (p.optimizer_offload != 0) {
    std::string percent = decimal(p.optimizer_offload, 2);
    std::replace(percent.begin(), percent.end(), '.', 'p');
    part(true, "oo" + percent);
  }
  part(p.parameter_offload, "po");
  part(p.activation_offload != 0, fmt::format("ao{}", p.activation_offload));
  part(p.offload_horizon != 1, fmt::format("hz{}", p.offload_horizon));
  part(p.bucket_elements != 0, "b" + count_text(p.bucket_elements));
  part(p.last_bucket_split != 1, fmt::format("lb{}", p.last_bucket_split));
  part(!p.overlap_grad_reduce, "nogr");
  part(!p.overlap_param_gather, "nopg");
  part(p.overlap_tp, "tpo");
  part(p.axis_order != ParallelPlan{}.axis_order, "ax-" + order_text(p.axis_order));
  part(!p.replica_microbatches.empty(), "ga" + list_text(p.replica_microbatches));
  part(!p.shard_weights.empty(), "sw" + list_text(p.shard_weights));
  part(!p.chunks.empty(), cut_text(layer_counts(p.chunks)));
  return key;
}

ParallelPlan parse_plan_key(std::string_view key) { return KeyParser(key).parse(); }

FilledPlan fill_plan_key(std::string_view key, const StackSpec& stack, int gpus, Dtype parameter,
                         const ModelSpec* model) {
  KeyParser parser(key);
  FilledPlan filled{parser.parse(), {}, {}, std::nullopt};
  filled.stated = parser.parts();
  ParallelPlan& p = filled.plan;
  if (const int replica = p.world(); !parser.seen("dp") && replica <= gpus) {
    if (gpus % replica == 0)
      p.dp = gpus / replica;
    else
      filled.indivisible =
          Problem{"", fmt::format("plan key {}", key), fmt::format("no dp, and tp * cp * pp = {}", replica),
                  fmt::format("a divisor of the cluster's {} GPUs", gpus),
                  fmt::format("state dp, at most {}, to leave GPUs idle", gpus / replica)};
  }
  const StackCapabilities& can = stack.can;
  std::vector<std::string> taken;
  if (!parser.seen("z") && !can.zero_stages.empty() &&
      std::ranges::find(can.zero_stages, 0) == can.zero_stages.end()) {
    p.zero_stage = std::ranges::min(can.zero_stages);
    taken.push_back(fmt::format("ZeRO {} (z{})", p.zero_stage, p.zero_stage));
  } else if (!parser.seen("z") && always_shards(can, p, parameter)) {
    // The lowest beside pipeline stages, whose micro-batches would gather parameters again and again, otherwise the highest.
    for (const int z : can.zero_stages)
      if (z > 0 && (p.zero_stage == 0 || (p.pp > 1) == (z < p.zero_stage))) p.zero_stage = z;
    taken.push_back(fmt::format("ZeRO {} (z{})", p.zero_stage, p.zero_stage));
  }
  const auto take = [&](std::string_view slot, bool refused, bool& field, std::string_view part) {
    if (!refused || !field || parser.seen(slot)) return;
    field = false;
    taken.emplace_back(part);
  };
  const bool reduces = p.replicas() > 1;
  take("sp", !can.sequence_parallel, p.sequence_parallel, "no sequence parallelism (nosp)");
  take("gr", reduces && !can.overlap_grad_reduce, p.overlap_grad_reduce,
       "gradient reduction not overlapped (nogr)");
  take("pg", reduces && p.zero_stage > 0 && !can.overlap_param_gather, p.overlap_param_gather,
       "parameter gather not overlapped (nopg)");
  if (p.activation_offload > 0 && can.activation_offload_needs_recompute && can.recompute_full &&
      !parser.seen("recompute")) {
    p.recompute.kind = RecomputeKind::full;
    taken.emplace_back("full recomputation (full)");
  }
  if (model != nullptr)
    if (auto cut = take_ruled_cut(can.uneven_stages, *model, p)) taken.push_back(std::move(*cut));
  if (!taken.empty())
    filled.notes.push_back(
        fmt::format("not stated in the plan key, so {}'s default: {}", stack.name, fmt::join(taken, ", ")));
  if (auto idle = idle_gpus(p, gpus); idle && !filled.indivisible) filled.notes.push_back(std::move(*idle));
  return filled;
}

std::optional<std::string> idle_gpus(const ParallelPlan& plan, int gpus) {
  if (plan.world() >= gpus) return std::nullopt;
  const int idle = gpus - plan.world();
  return fmt::format("{} of the cluster's {} GPUs are used; {} {} idle", plan.world(), gpus, idle,
                     idle == 1 ? "is" : "are");
}

}  // namespace sextant
