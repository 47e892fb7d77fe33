#include "core/plan/plan_limits.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/base/words.hpp"

namespace sextant {

namespace {

constexpr std::array<std::string_view, 2> kOffOn = {"off", "on"};
constexpr std::array<std::string_view, 4> kSchedules = {"1f1b", "int", "gpipe", "zb"};
constexpr std::array<std::string_view, 3> kRecompute = {"none", "sel", "full"};

constexpr std::array<std::string_view, 2> kSplits = {"even", "balanced"};

// "tp-cp-dp-pp" and the 23 others. Every axis has a name of two letters.
constexpr std::size_t kOrders = 24, kOrderLength = 11;
constexpr auto kOrderText = [] {
  std::array<char, kOrders * kOrderLength> text{};
  std::array<std::size_t, 4> order = {0, 1, 2, 3};
  std::size_t at = 0;
  do {
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0) text[at++] = '-';
      for (const char c : kAxisNames[order[i]]) text[at++] = c;
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return text;
}();
constexpr auto kAxisOrders = [] {
  std::array<std::string_view, kOrders> names;
  for (std::size_t i = 0; i < kOrders; ++i)
    names[i] = std::string_view(kOrderText.data() + i * kOrderLength, kOrderLength);
  return names;
}();

// Layers recomputed in full; all of them count as more than any model has.
double recomputed_layers(const ParallelPlan& p) {
  if (p.recompute.kind != RecomputeKind::full) return 0;
  return p.recompute.layers < 0 ? kMaxLayers : p.recompute.layers;
}

// In the order of PlanField. Names are the parts of a plan key; the second name is the field's own.
struct FieldRow {
  std::string_view name, long_name;
  std::int64_t least, most;
  const std::string_view* words;  // of values 0 .. most, or none
  double (*value)(const ParallelPlan&);
};
constexpr std::array kLimitFields = {
    FieldRow{"tp", "tensor_parallel", 1, kMaxDegree, nullptr,
             [](const ParallelPlan& p) { return double(p.tp); }},
    FieldRow{"cp", "context_parallel", 1, kMaxDegree, nullptr,
             [](const ParallelPlan& p) { return double(p.cp); }},
    FieldRow{"pp", "pipeline_parallel", 1, kMaxDegree, nullptr,
             [](const ParallelPlan& p) { return double(p.pp); }},
    FieldRow{"vp", "virtual_stages", 1, kMaxDegree, nullptr,
             [](const ParallelPlan& p) { return double(p.vp); }},
    FieldRow{"dp", "data_parallel", 1, kMaxDegree, nullptr,
             [](const ParallelPlan& p) { return double(p.dp); }},
    FieldRow{"z", "zero", 0, 3, nullptr, [](const ParallelPlan& p) { return double(p.zero_stage); }},
    FieldRow{"sd", "shard_degree", 1, kMaxDegree, nullptr,
             [](const ParallelPlan& p) { return double(p.shards()); }},
    FieldRow{"mbs", "micro_batch", 1, kMaxDegree, nullptr,
             [](const ParallelPlan& p) { return double(p.micro_batch); }},
    FieldRow{"sp", "sequence_parallel", 0, 1, kOffOn.data(),
             [](const ParallelPlan& p) { return double(p.sequence_parallel); }},
    FieldRow{"schedule", "pipeline_schedule", 0, 3, kSchedules.data(),
             [](const ParallelPlan& p) { return double(static_cast<int>(p.schedule)); }},
    FieldRow{"rec", "recompute", 0, 2, kRecompute.data(),
             [](const ParallelPlan& p) { return double(static_cast<int>(p.recompute.kind)); }},
    FieldRow{
        "oo", "optimizer_offload", 0, 100, nullptr,
        [](const ParallelPlan& p) { return std::round(1e8 * p.optimizer_offload) / 1e6; }},  // 100 * 0.07 > 7
    FieldRow{"po", "parameter_offload", 0, 1, kOffOn.data(),
             [](const ParallelPlan& p) { return double(p.parameter_offload); }},
    FieldRow{"ao", "activation_offload", 0, kMaxDegree, nullptr,
             [](const ParallelPlan& p) { return double(p.activation_offload); }},
    FieldRow{"gr", "overlap_grad_reduce", 0, 1, kOffOn.data(),
             [](const ParallelPlan& p) { return double(p.overlap_grad_reduce); }},
    FieldRow{"pg", "overlap_param_gather", 0, 1, kOffOn.data(),
             [](const ParallelPlan& p) { return double(p.overlap_param_gather); }},
    FieldRow{"tpo", "overlap_tp", 0, 1, kOffOn.data(),
             [](const ParallelPlan& p) { return double(p.overlap_tp); }},
    FieldRow{"b", "bucket_elements", 0, 1'000'000'000'000, nullptr,
             [](const ParallelPlan& p) { return double(p.bucket_elements); }},
    FieldRow{"lb", "last_bucket_split", 1, kMaxDegree, nullptr,
             [](const ParallelPlan& p) { return double(p.last_bucket_split); }},
    FieldRow{"hz", "offload_horizon", 0, kMaxDegree, nullptr,
             [](const ParallelPlan& p) { return double(p.offload_horizon); }},
    FieldRow{"rk", "recompute_layers", 0, kMaxLayers, nullptr, recomputed_layers},
    FieldRow{"ax", "axis_order", 0, kOrders - 1, kAxisOrders.data(),
             [](const ParallelPlan& p) { return double(axis_order_index(p.axis_order)); }},
    FieldRow{"split", "stage_split", 0, 1, kSplits.data(),
             [](const ParallelPlan& p) { return double(!p.chunks.empty()); }},
};
static_assert(kLimitFields.size() == kPlanFields);

// Longer signs first, so that "<=" is not read as "<".
constexpr std::array<std::pair<std::string_view, Relation>, 8> kRelations = {{{"<=", Relation::less_equal},
                                                                              {">=", Relation::greater_equal},
                                                                              {"!=", Relation::not_equal},
                                                                              {"==", Relation::equal},
                                                                              {"=", Relation::equal},
                                                                              {"<", Relation::less},
                                                                              {">", Relation::greater},
                                                                              {":", Relation::equal}}};

const FieldRow& row(PlanField field) { return kLimitFields[static_cast<std::size_t>(field)]; }

bool holds(double x, Relation relation, double limit) {
  switch (relation) {
    case Relation::equal:
      return x == limit;
    case Relation::not_equal:
      return x != limit;
    case Relation::less:
      return x < limit;
    case Relation::less_equal:
      return x <= limit;
    case Relation::greater:
      return x > limit;
    case Relation::greater_equal:
      return x >= limit;
  }
  return false;
}

std::string value_text(const FieldRow& field, double value) {
  if (field.name == "rk" && value == kMaxLayers) return "all";
  if (field.name == "b" && value > 0)
    for (const auto& [shift, letter] : {std::pair{9, 'G'}, {6, 'M'}, {3, 'K'}})
      if (std::fmod(value, std::pow(10.0, shift)) == 0) return decimal(value, -shift) + letter;
  return field.words ? std::string(field.words[static_cast<std::size_t>(value)]) : decimal(value);
}

std::string text_of(const PlanLimit& limit) {
  const auto sign = std::find_if(kRelations.begin(), kRelations.end(), [&](const auto& known) {
    return known.second == limit.relation && known.first != "==";
  });
  return fmt::format("{}{}{}", row(limit.field).name, sign->first, value_text(row(limit.field), limit.value));
}

std::string allowed_values(const FieldRow& field) {
  if (field.words)
    return fmt::format("one of {}", fmt::join(field.words, field.words + field.most + 1, ", "));
  if (field.name == "oo") return fmt::format("percent from {} to {}", field.least, field.most);
  return fmt::format("a whole number from {} to {}{}", field.least, field.most,
                     field.name == "b"    ? " (elements; K, M and G may follow)"
                     : field.name == "rk" ? ", or all"
                     : field.name == "sd" ? " (dp * cp of them: all replicas)"
                                          : "");
}

std::optional<double> parse_value(const FieldRow& field, std::string_view text) {
  for (std::int64_t i = 0; field.words && i <= field.most; ++i)
    if (field.words[i] == text) return static_cast<double>(i);
  if (field.words == kOffOn.data() && (text == "0" || text == "false")) return 0;
  if (field.words == kOffOn.data() && (text == "1" || text == "true")) return 1;
  if (field.words == kRecompute.data() && text == "selective") return 1;
  if (field.words == kSchedules.data())  // plan files spell them out
    if (const auto full = std::ranges::find(kScheduleNames, text); full != kScheduleNames.end())
      return static_cast<double>(full - kScheduleNames.begin());
  if (field.words) return std::nullopt;
  if (field.name == "rk" && text == "all") return kMaxLayers;
  int shift = 0;
  if (field.name == "b" && !text.empty()) {
    const std::size_t unit = std::string_view("KMGkmg").find(text.back());
    if (unit != std::string_view::npos) {
      shift = 3 * (static_cast<int>(unit % 3) + 1);
      text.remove_suffix(1);
    }
  }
  const auto number = parse_decimal(text, -shift);
  const bool whole = number && (*number == std::floor(*number) || field.name == "oo");
  return whole && *number >= field.least && *number <= field.most ? number : std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  const auto begin = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(begin);
  text.remove_suffix(text.size() - std::min(text.find_last_not_of(" \t") + 1, text.size()));
  return text;
}

// The limits of a field exclude each other when neither its ends, nor the limits' own values, nor their
// neighbours satisfy all of them.
std::vector<Problem> inconsistencies(const PlanLimits& all, const std::string& flag) {
  std::vector<Problem> problems;
  for (std::size_t f = 0; f < kLimitFields.size(); ++f) {
    const auto field = static_cast<PlanField>(f);
    std::vector<double> tries = {double(kLimitFields[f].least), double(kLimitFields[f].most)};
    std::string texts;
    for (const auto& limit : all.limits)
      if (limit.field == field) {
        for (const double step : {-1.0, -0.5, 0.0, 0.5, 1.0}) tries.push_back(limit.value + step);
        texts += (texts.empty() ? "" : ",") + text_of(limit);
      }
    const bool whole = kLimitFields[f].name != "oo";
    const bool possible = std::any_of(tries.begin(), tries.end(), [&](double x) {
      return (!whole || x == std::floor(x)) && x >= kLimitFields[f].least && x <= kLimitFields[f].most &&
             all.admits(field, x);
    });
    if (!possible)
      problems.push_back({.file = flag,
                          .key = std::string(kLimitFields[f].name),
                          .value = texts,
                          .expected = "limits that some value satisfies",
                          .hint = ""});
  }
  return problems;
}

class LimitParser {
 public:
  LimitParser(std::string flag, bool only_equal) : flag_(std::move(flag)), only_equal_(only_equal) {}

  PlanLimits parse(std::string_view text) {
    for (std::size_t begin = 0; begin <= text.size();) {
      const auto end = std::min(text.find(',', begin), text.size());
      read(trimmed(text.substr(begin, end - begin)));
      begin = end + 1;
    }
    if (problems_.empty()) problems_ = inconsistencies(limits_, flag_);
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
    return limits_;
  }

 private:
  void read(std::string_view item) {
    const std::size_t at = item.find_first_of("<>=!:");
    const auto known = std::find_if(kRelations.begin(), kRelations.end(), [&](const auto& sign) {
      return at != item.npos && item.substr(at).starts_with(sign.first);
    });
    const std::string_view written = trimmed(item.substr(0, std::min(at, item.size())));
    const std::string name = written == "L" ? "L" : lower(written);  // "TP=2" is what people write
    if (known == kRelations.end() || name.empty())
      return wrong(item,
                   only_equal_ ? "field=value, as in tp=4,pp=2" : "a limit, as in tp<=8,mbs<=4,rec!=full",
                   fields_of_key(item));
    const auto field = std::find_if(kLimitFields.begin(), kLimitFields.end(),
                                    [&](const FieldRow& r) { return name == r.name || name == r.long_name; });
    if (field == kLimitFields.end()) return unknown(written);
    if (only_equal_ && known->second != Relation::equal)
      return wrong(item, "field=value", fmt::format("--limit '{}' narrows a field", item));
    const std::string_view text = trimmed(item.substr(at + known->first.size()));
    // As a plan key has it: full12 is full recomputation of 12 layers of each chunk.
    if (field->name == "rec" && known->second == Relation::equal && text.starts_with("full") &&
        text.size() > 4) {
      const FieldRow& layers = row(PlanField::recompute_layers);
      const auto count = parse_value(layers, text.substr(4));
      if (!count || *count < 1) return wrong(text, "full and a number of layers, as in full12");
      limits_.limits.push_back(
          {PlanField::recompute, Relation::equal, static_cast<double>(RecomputeKind::full)});
      limits_.limits.push_back({PlanField::recompute_layers, Relation::equal, *count});
      return;
    }
    const auto value = parse_value(*field, text);
    if (!value) return wrong(text, allowed_values(*field), "", field->name);
    limits_.limits.push_back({static_cast<PlanField>(field - kLimitFields.begin()), known->second, *value});
  }

  // "written rec=sel" of a plan key or a part of one, "sel"; empty of any other text.
  static std::string fields_of_key(std::string_view item) {
    ParallelPlan p;
    try {
      p = parse_plan_key(item);
    } catch (const ConfigError&) {
      return "";
    }
    const bool says_sp = item.find("sp") != item.npos;
    std::vector<std::string> out;
    for (const FieldRow& r : kLimitFields) {
      const double value = r.value(p);
      const bool follows = r.name == "split" || (r.name == "schedule" && p.vp > 1) ||
                           (r.name == "rk" && p.recompute.layers < 0);
      const bool stated = r.name == "sp" ? says_sp : value != r.value(ParallelPlan());
      if (!stated || follows) continue;
      out.push_back(r.words != nullptr
                        ? fmt::format("{}={}", r.name, r.words[static_cast<std::size_t>(value)])
                        : fmt::format("{}={:g}", r.name, value));
    }
    return out.empty() ? "" : fmt::format("here that is written {}", fmt::join(out, ","));
  }

  void unknown(std::string_view name) {
    // Parts of a plan key that are lists: no field of the search has them.
    for (const auto& [part, long_name, hint] :
         {std::tuple{"ga", "replica_microbatches",
                     "how many micro-batches each replica has is stated in a plan key (--plan dp8.ga9x7-5); "
                     "the search has "
                     "replicas that are alike"},
          {"sw", "shard_weights",
           "what each shard has is stated in a plan key (--plan dp8.z1.sw2x7-1); the search has shards that "
           "are alike"},
          {"L", "chunk_layers",
           "layers of each chunk are stated in a plan key (--plan pp4.L7-9-9-7); split=even or "
           "split=balanced is "
           "what the search knows"}})
      if (name == part || name == long_name || (name == "l" && *part == 'L'))
        return wrong(name, "a field of the search", hint);
    std::vector<std::string> names;
    for (const auto& r : kLimitFields) {
      names.emplace_back(r.name);
      names.emplace_back(r.long_name);
    }
    const std::string near = closest(name, names);
    std::vector<std::string_view> shorts;
    for (const auto& r : kLimitFields) shorts.push_back(r.name);
    wrong(name, fmt::format("one of {}", fmt::join(shorts, ", ")),
          near.empty() ? "" : fmt::format("did you mean {}?", near));
  }

  void wrong(std::string_view found, std::string expected, std::string hint = "", std::string_view key = "") {
    problems_.push_back({.file = flag_,
                         .key = std::string(key),
                         .value = std::string(found.empty() ? "nothing" : found),
                         .expected = std::move(expected),
                         .hint = std::move(hint)});
  }

  std::string flag_;
  bool only_equal_;
  PlanLimits limits_;
  std::vector<Problem> problems_;
};

}  // namespace

int axis_order_index(const std::array<Axis, 4>& order) {
  std::array<Axis, 4> known = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};
  std::sort(known.begin(), known.end());
  int index = 0;
  while (known != order && std::next_permutation(known.begin(), known.end())) ++index;
  return index;
}

double field_value(const ParallelPlan& plan, PlanField field) { return row(field).value(plan); }

bool PlanLimits::admits(PlanField field, double value) const {
  return std::all_of(limits.begin(), limits.end(), [&](const PlanLimit& limit) {
    return limit.field != field || holds(value, limit.relation, limit.value);
  });
}

bool PlanLimits::pins(PlanField field) const {
  return std::ranges::any_of(limits, [&](const PlanLimit& limit) {
    return limit.field == field && limit.relation == Relation::equal;
  });
}

bool PlanLimits::admits(const ParallelPlan& plan) const {
  return std::all_of(limits.begin(), limits.end(), [&](const PlanLimit& limit) {
    return holds(field_value(plan, limit.field), limit.relation, limit.value);
  });
}

PlanLimits parse_plan_limits(std::string_view text, const std::string& flag, bool only_equal) {
  return LimitParser(flag, only_equal).parse(text);
}

std::string to_string(const PlanLimits& all) {
  std::string out;
  for (const auto& limit : all.limits) out += (out.empty() ? "" : ",") + text_of(limit);
  return out;
}

PlanLimits combine(PlanLimits a, const PlanLimits& b) {
  a.limits.insert(a.limits.end(), b.limits.begin(), b.limits.end());
  if (auto problems = inconsistencies(a, "--fix, --limit"); !problems.empty()) throw ConfigError(problems);
  return a;
}

}  // namespace sextant
