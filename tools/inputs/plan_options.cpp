#include "tools/inputs/plan_options.hpp"

#include <algorithm>
#include <regex>

#include <fmt/format.h>

#include "core/base/decimal.hpp"

namespace sextant {

namespace {

constexpr int kMostScaleSizes = 64;

[[noreturn]] void wrong(const std::string& flag, const std::string& value, const std::string& expected) {
  throw ConfigError(Problem{
      .file = flag, .key = "", .value = value.empty() ? "nothing" : value, .expected = expected, .hint = ""});
}

std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

}  // namespace

std::vector<int> parse_sizes(const std::string& text) {
  const auto bad = [&]() {
    wrong("--scale", text,
          fmt::format("at most {} sizes, ascending numbers of GPUs, as in 8,16,32 or 8,16,...,512",
                      kMostScaleSizes));
  };
  std::vector<int> sizes;
  bool gap = false;
  for (const auto& item : items_of(text)) {
    if (item == "..." || item == "\u2026") {
      if (sizes.size() < 2 || gap) bad();
      gap = true;
      continue;
    }
    const auto n = parse_count(item, kMaxWorld);
    if (!n || *n < 1) bad();
    if (gap) {  // doubling when the numbers before double, otherwise equal steps
      const int last = sizes.back(), before = sizes[sizes.size() - 2];
      for (long long next = last;;) {
        next = last == 2 * before ? 2 * next : next + (last - before);
        if (next >= *n) break;
        sizes.push_back(static_cast<int>(next));
        if (sizes.size() > kMostScaleSizes) bad();
      }
      gap = false;
    }
    if (!sizes.empty() && *n <= sizes.back()) bad();
    sizes.push_back(static_cast<int>(*n));
  }
  if (gap || sizes.size() > kMostScaleSizes) bad();
  return sizes;
}

Seconds parse_duration(const std::string& text, const std::string& flag) {
  const char unit = text.empty() ? ' ' : text.back();
  const auto number = parse_decimal(text.substr(0, text.empty() ? 0 : text.size() - 1));
  const double seconds = unit == 'd' ? 86400 : unit == 'h' ? 3600 : 0;
  if (!number || *number <= 0 || seconds == 0 || *number > 1e6)
    wrong(flag, text, "days or hours, as in 30d or 36h");
  return Seconds(*number * seconds);
}

double parse_tokens(const std::string& text, const std::string& flag) {
  const char unit = text.empty() ? ' ' : text.back();
  const int shift = unit == 'T' || unit == 't'   ? 12
                    : unit == 'B' || unit == 'b' ? 9
                    : unit == 'M' || unit == 'm' ? 6
                                                 : 0;
  std::string digits = text.substr(0, text.size() - (shift > 0 ? 1 : 0));
  static const std::regex kThousands("[0-9]{1,3}(,[0-9]{3})+");
  if (std::regex_match(digits, kThousands)) std::erase(digits, ',');
  const auto number = parse_decimal(digits, -shift);
  if (!number || *number < 1 || *number > 1e18)
    wrong(flag, text, "a number of tokens, as in 2e12, 15T or 300B");
  return *number;
}

std::optional<Seconds> longest_step(const PlanOptions& o, const TrainingSpec& training) {
  if (o.deadline.empty()) return std::nullopt;
  const double steps =
      parse_tokens(o.tokens, "--tokens") / (static_cast<double>(training.global_batch) * training.seq_len);
  return Seconds(parse_duration(o.deadline, "--deadline").v / steps);
}

void settle(PlanOptions& o) {
  const bool fewest = o.objective == "fewest-gpus",
             sized = o.objective == "tokens-per-dollar" || o.objective == "goodput";
  const auto refuse = [](const std::string& text) { throw UsageError(text); };
  if (o.shortlist > 0 && o.output.empty())
    refuse("--shortlist needs -o\n  for example: --shortlist 3 -o shortlist.json");
  if (o.shortlist > 0 &&
      (o.objective != "throughput" || o.pareto || !o.jitter.ranked_by.empty() || !o.scale.empty()))
    refuse("--shortlist is for the fastest layouts: without --objective, --pareto, --rank-by and --scale");
  if (!o.deadline.empty() && !fewest) refuse("--deadline is for --objective fewest-gpus");
  if (!o.deadline.empty() && o.tokens.empty())
    refuse("--deadline needs --tokens\n  for example: --deadline 30d --tokens 2T");
  if (!o.deadline.empty()) parse_duration(o.deadline, "--deadline");
  if (!o.tokens.empty()) parse_tokens(o.tokens, "--tokens");
  if (!o.scale.empty()) parse_sizes(o.scale);
  if (!o.scale.empty() && o.objective != "throughput" && !sized)
    refuse("--scale goes with --objective throughput, goodput or tokens-per-dollar");
  if (o.pareto && (!o.scale.empty() || o.objective != "throughput"))
    refuse("--pareto is an answer of its own: without --scale and --objective");
  if (!o.jitter.ranked_by.empty() && (o.pareto || !o.scale.empty() || o.objective != "throughput"))
    refuse("--rank-by ranks the layouts of one cluster: without --pareto, --scale and --objective");
  if (!o.question.profile.empty() && (o.pareto || o.shortlist > 0 || !o.scale.empty() ||
                                      !o.jitter.ranked_by.empty() || o.objective != "throughput"))
    refuse(
        "--profile ranks the fastest layouts of one cluster: without --objective, --pareto, --rank-by, "
        "--scale "
        "and --shortlist\n  for example: sextant simulate --plan plan.json --profile profile.json, of a plan "
        "that these find");
  if (!o.output.empty() && !o.scale.empty() && !sized)
    refuse("-o writes one layout: with --scale, --objective goodput or tokens-per-dollar chooses it");
  settle(o.goodput, o.question);
  o.question.samples_jitter = !o.jitter.ranked_by.empty();
  auto& set = o.question.set;
  if (o.price_usd > 0) set.push_back(fmt::format("device.price_usd_per_hour={}", decimal(o.price_usd)));
  settle(o.jitter, o.question);
}

RankBy JitterOptions::rank_by() const {
  return ranked_by.empty() ? RankBy::undisturbed : ranked_by == "p90" ? RankBy::p90 : RankBy::expected;
}

void settle(const JitterOptions& o, QuestionOptions& question) {
  auto& set = question.set;
  if (o.straggler_sigma > 0)
    set.push_back(fmt::format("jitter.compute_sigma={}", decimal(o.straggler_sigma)));
  if (o.network_sigma > 0) set.push_back(fmt::format("jitter.network_sigma={}", decimal(o.network_sigma)));
}

void require_jitter(const JitterOptions& o, const JitterSpec& jitter) {
  if (!o.ranked_by.empty() && jitter == JitterSpec{})
    throw UsageError(
        "--rank-by needs jitter\n  for example: --straggler-sigma 0.02 --network-sigma 0.1, or the cluster's "
        "jitter.compute_sigma");
}

void add_jitter_options(CLI::App& app, JitterOptions& o) {
  add_text(app,
           {.flag = "--rank-by",
            .metavar = "expected|p90",
            .text = "rank by the mean or the 90th percentile of steps under jitter"},
           o.ranked_by);
  add_number(app,
             {.flag = "--straggler-sigma",
              .metavar = "S",
              .text = "spread of every rank's compute from step to step (lognormal); 0 = the cluster's",
              .unit = "",
              .min = 0,
              .max = 1},
             o.straggler_sigma);
  add_number(app,
             {.flag = "--network-sigma",
              .metavar = "S",
              .text = "spread of the network's bandwidth from step to step (lognormal); 0 = the cluster's",
              .unit = "",
              .min = 0,
              .max = 1},
             o.network_sigma);
}

// NOLINTNEXTLINE(readability-function-size): one list of options.
void add_plan_options(CLI::App& app, PlanOptions& o) {
  add_question_options(app, o.question, {.plan = false, .limits = true, .profile = true, .from = true});
  add_text(
      app,
      {.flag = "--objective",
       .metavar = "throughput|goodput|tokens-per-dollar|fewest-gpus|least-memory",
       .text = "what is best: the shortest step; the most tokens per second that failures do not undo, "
               "or per dollar, over sizes up to the cluster's; the fewest of its GPUs; the least memory"},
      o.objective);
  add_goodput_options(app, o.goodput);
  add_text(app,
           {.flag = "--deadline",
            .metavar = "TIME",
            .text = "of fewest-gpus: train --tokens within this time (30d, 36h)"},
           o.deadline);
  add_text(app,
           {.flag = "--tokens",
            .metavar = "N",
            .text = "length of the training (2e12, 15T, 300B): the answer reports its duration and cost; of "
                    "fewest-gpus: what the deadline is for"},
           o.tokens);
  add_number(app,
             {.flag = "--price-per-gpu-hour",
              .metavar = "USD",
              .text = "in place of the device's list price; 0 = list price",
              .unit = "US dollars",
              .min = 0,
              .max = 1e6},
             o.price_usd);
  add_text(app,
           {.flag = "--scale", .metavar = "N,...", .text = "the best layout of each size: 8,16,...,512 GPUs"},
           o.scale);
  add_flag(app,
           {.flag = "--pareto", .metavar = "", .text = "the layouts that trade step time against memory"},
           o.pareto);
  add_flag(app,
           {.flag = "--details",
            .metavar = "",
            .text = "the ranking by step time, what became of the other layouts, and why they lost"},
           o.details);
  add_flag(app,
           {.flag = "--daring",
            .metavar = "",
            .text = "recommend the fastest on paper, whatever its risk and its features"},
           o.daring);
  add_jitter_options(app, o.jitter);
  add_number(
      app,
      {.flag = "--max-oom-chance",
       .metavar = "P",
       .text = "only layouts that run out of memory with at most this chance: 0.05 is 1 in 20; 0 = all that "
               "are predicted to fit",
       .unit = "",
       .min = 0,
       .max = 1},
      o.max_oom_chance);
  add_number(app,
             {.flag = "--top", .metavar = "N", .text = "layouts to show", .unit = "", .min = 1, .max = 1000},
             o.top);
  add_number(app,
             {.flag = "--budget-s",
              .metavar = "SECONDS",
              .text = "stop after this time with the best so far; 0 = until proved, the fastest alone after "
                      "half a minute",
              .unit = "seconds",
              .min = 0,
              .max = 1e6},
             o.budget_s);
  add_number(app,
             {.flag = "--shortlist",
              .metavar = "N",
              .text = "write the N layouts worth trying (-o) instead of the best; 0 = none",
              .unit = "",
              .min = 0,
              .max = 20},
             o.shortlist);
  add_text(app, {.flag = "-o,--output", .metavar = "FILE", .text = "write the best as a plan file"},
           o.output);
}

}  // namespace sextant
