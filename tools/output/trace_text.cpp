#include "tools/output/trace_text.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <ostream>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/words.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

// Nothing, on either side of it, is 0.
std::string without_sign_of_zero(const std::string& text) {
  return text.find_first_not_of("-0.") == text.npos && text.starts_with('-') ? text.substr(1) : text;
}
std::string milliseconds(double seconds) {
  return without_sign_of_zero(fmt::format("{:.2f}", 1e3 * seconds));
}
std::string over(double predicted, double measured) {
  if (predicted < 1e-9) return "";
  const double ratio = measured / predicted;
  return fmt::format("{:.{}f}", ratio, ratio < 100 ? 2 : 0);
}

// "GEMM", "exposed TP", "host-bound gaps".
std::string step_part_text(StepPart part) {
  switch (part) {
    case StepPart::gemm:
      return "GEMM";
    case StepPart::attention:
      return "attention cores";
    case StepPart::element_wise:
      return "norms, element-wise, copies";
    case StepPart::other_kernels:
      return "kernels of unknown names";
    case StepPart::optimizer:
      return "optimizer";
    case StepPart::exposed_tp:
      return "exposed TP";
    case StepPart::exposed_cp:
      return "exposed CP";
    case StepPart::exposed_pp:
      return "exposed PP";
    case StepPart::exposed_dp:
      return "exposed DP";
    case StepPart::exposed_unknown:
      return "exposed, group unknown";
    case StepPart::offload:
      return "host-device copies";
    case StepPart::bubble:
      return "bubble";
    case StepPart::stragglers:
      return "waiting for other ranks";
    case StepPart::host:
      break;
  }
  return "host-bound gaps";
}

std::string axis_text(GroupAxis axis) {
  std::string text(name(axis));
  if (axis != GroupAxis::unknown)
    std::ranges::transform(text, text.begin(), [](char c) { return static_cast<char>(c - 'a' + 'A'); });
  return text;
}

std::string steps_text(const TracedJob& job) {
  std::set<std::int64_t> numbers;
  for (const RankSteps& rank : job.ranks)
    for (const StepWindow& step : rank.steps) numbers.insert(step.number);
  if (numbers.size() == 1) return fmt::format("step {}", *numbers.begin());
  return fmt::format("{} steps ({} to {})", numbers.size(), *numbers.begin(), *numbers.rbegin());
}

void print_ranks(Session& session, const TracedAccount& measured) {
  Table table({{"rank", Align::right},
               {"steps", Align::right, 3},
               {"step ms", Align::right},
               {"shortest", Align::right, 5},
               {"longest", Align::right, 5},
               {"compute", Align::right},
               {"communication", Align::right, 2},
               {"of it exposed", Align::right},
               {"waiting in it", Align::right, 4},
               {"copies", Align::right, 6},
               {"idle", Align::right},
               {"host-bound", Align::right, 1}});
  constexpr std::size_t kShown = 16;
  for (std::size_t i = 0; i < std::min(kShown, measured.ranks.size()); ++i) {
    const RankAccount& r = measured.ranks[i];
    table.add_row({fmt::format("{}", r.rank), fmt::format("{}", r.steps), milliseconds(r.median.step_s),
                   milliseconds(r.shortest_s), milliseconds(r.longest_s),
                   milliseconds(r.median.computing_s()), milliseconds(r.median.communication_s),
                   milliseconds(r.median.exposed_s()), milliseconds(r.median.waiting_s()),
                   milliseconds(r.median.host_copy_s + r.median.device_copy_s),
                   milliseconds(r.median.idle_s()), milliseconds(r.median.host_idle_s)});
  }
  session.terminal.out << table.render(session.terminal, session.common.wide);
  if (measured.ranks.size() > kShown)
    session.terminal.out << fmt::format("(the first {} of {} ranks; --json has all)\n", kShown,
                                        measured.ranks.size());
}

void print_parts(Session& session, const StepAccount& measured, const std::optional<StepAccount>& predicted) {
  const double difference = predicted ? measured.step_s - predicted->step_s : 0;
  Table table(predicted ? std::vector<Column>{{"part of the step", Align::left},
                                              {"predicted ms"},
                                              {"measured ms"},
                                              {"ratio"},
                                              {"of the difference %", Align::right, 1}}
                        : std::vector<Column>{{"part of the step", Align::left}, {"measured ms"}, {"%"}});
  const auto row = [&](const std::string& what, double p, double m) {
    if (!predicted)
      return table.add_row({what, milliseconds(m), fmt::format("{:.1f}", 100 * m / measured.step_s)});
    table.add_row(
        {what, milliseconds(p), milliseconds(m), over(p, m),
         difference != 0 ? without_sign_of_zero(fmt::format("{:.0f}", 100 * (m - p) / difference)) : ""});
  };
  for (std::size_t i = 0; i < measured.parts.size(); ++i) {
    const double p = predicted ? predicted->parts[i] : 0, m = measured.parts[i];
    if (std::max(p, m) >= 1e-4 * measured.step_s) row(step_part_text(static_cast<StepPart>(i)), p, m);
  }
  row("step", predicted ? predicted->step_s : 0, measured.step_s);
  table.emphasize_last_row();
  session.terminal.out << table.render(session.terminal, session.common.wide);
}

// Keys of both, longest first.
std::vector<std::pair<GroupAxis, CollectiveName>> collectives_of(
    const StepAccount& measured, const std::optional<StepAccount>& predicted) {
  CollectiveTable both = measured.collectives;
  if (predicted)
    for (const auto& [key, c] : predicted->collectives)
      both[key].seconds = std::max(both[key].seconds, c.seconds);
  std::vector<std::pair<GroupAxis, CollectiveName>> keys;
  for (const auto& [key, c] : both) keys.push_back(key);
  std::ranges::stable_sort(keys, std::greater{}, [&](const auto& key) { return both.at(key).seconds; });
  return keys;
}

AxisCollectives found_in(const CollectiveTable& table, const CollectiveTable::key_type& key) {
  const auto found = table.find(key);
  return found == table.end() ? AxisCollectives{} : found->second;
}

void print_collectives(Session& session, const StepAccount& measured,
                       const std::optional<StepAccount>& predicted) {
  std::vector<Column> columns = {{"collectives", Align::left}, {"over", Align::left}};
  if (predicted) columns.insert(columns.end(), {{"predicted", Align::right, 1}, {"predicted ms"}});
  columns.insert(columns.end(), {{"measured", Align::right, 1}, {"measured ms"}});
  if (predicted) columns.push_back({"ratio"});
  Table table(columns);
  for (const auto& key : collectives_of(measured, predicted)) {
    const AxisCollectives m = found_in(measured.collectives, key);
    const AxisCollectives p = predicted ? found_in(predicted->collectives, key) : AxisCollectives{};
    if (std::max(p.seconds, m.seconds) < 1e-6) continue;
    std::vector<std::string> cells = {words(name(key.second)), axis_text(key.first)};
    if (predicted) cells.insert(cells.end(), {fmt::format("{:.4g}", p.count), milliseconds(p.seconds)});
    cells.insert(cells.end(), {fmt::format("{:.4g}", m.count), milliseconds(m.seconds)});
    if (predicted) cells.push_back(over(p.seconds, m.seconds));
    table.add_row(std::move(cells));
  }
  if (!table.empty())
    session.terminal.out
        << '\n'
        << table.render(session.terminal, session.common.wide)
        << "(of a rank's step, hidden behind compute or not, without waiting for other ranks)\n";
}

// The parts that make the step longer or shorter, largest first, until nine tenths are told.
std::string explanation(const StepAccount& measured, const StepAccount& predicted) {
  const double difference = measured.step_s - predicted.step_s;
  std::vector<std::pair<double, StepPart>> parts;
  for (std::size_t i = 0; i < measured.parts.size(); ++i)
    parts.emplace_back(measured.parts[i] - predicted.parts[i], static_cast<StepPart>(i));
  std::ranges::stable_sort(parts, std::greater{}, [](const auto& p) { return std::abs(p.first); });
  std::vector<std::string> told;
  double rest = difference;
  for (const auto& [seconds, part] : parts) {
    if (std::abs(rest) < 0.1 * std::abs(difference) || told.size() == 4 ||
        std::abs(seconds) < 0.05 * std::abs(difference))
      break;
    told.push_back(fmt::format("{} {:+.2f} ms", step_part_text(part), 1e3 * seconds));
    rest -= seconds;
  }
  if (std::abs(difference) < 0.005 * predicted.step_s)
    return fmt::format("The step takes what was predicted, within {:.1f} %.",
                       100 * std::abs(difference) / predicted.step_s);
  return fmt::format("The step takes {:.2f} ms ({:.1f} %) {} than predicted: {}.", 1e3 * std::abs(difference),
                     100 * std::abs(difference) / predicted.step_s, difference > 0 ? "longer" : "less",
                     fmt::join(told, ", "));
}

Json parts_json(const StepParts& parts) {
  Json out = Json::object();
  for (std::size_t i = 0; i < parts.size(); ++i) out[std::string(name(static_cast<StepPart>(i)))] = parts[i];
  return out;
}

Json rank_json(const RankAccount& r) {
  return {{"rank", r.rank},
          {"steps", r.steps},
          {"step_s", r.median.step_s},
          {"shortest_s", r.shortest_s},
          {"longest_s", r.longest_s},
          {"compute_s", r.median.computing_s()},
          {"communication_s", r.median.communication_s},
          {"exposed_communication_s", r.median.exposed_s()},
          {"exposed_waiting_s", r.median.waiting_s()},
          {"copies_s", r.median.host_copy_s + r.median.device_copy_s},
          {"idle_s", r.median.idle_s()},
          {"host_bound_s", r.median.host_idle_s},
          {"breakdown_s", parts_json(r.account.parts)}};
}

}  // namespace

void print_traced(Session& session, const TracedJob& job, const TracedAccount& measured,
                  const std::optional<StepAccount>& predicted) {
  auto& out = session.terminal.out;
  const std::size_t ranks = measured.ranks.size();
  const std::string of_ranks = job.world > 0 ? fmt::format("{} of {} ranks", ranks, job.world)
                               : ranks == 1  ? "1 rank"
                                             : fmt::format("{} ranks", ranks);
  out << wrapped_answer(session.terminal,
                        fmt::format("{}: {}{}, {}; each rank's step of middle length{}", job.program,
                                    of_ranks, job.device.empty() ? "" : ", " + job.device, steps_text(job),
                                    ranks > 1 ? ", parts as the mean over ranks" : ""));
  for (const std::string& remark : job.remarks) out << wrapped_answer(session.terminal, "note: " + remark);
  out << '\n';
  print_ranks(session, measured);
  out << '\n';
  print_parts(session, measured.mean, predicted);
  if (predicted) out << wrapped_answer(session.terminal, explanation(measured.mean, *predicted));
  print_collectives(session, measured.mean, predicted);
}

nlohmann::ordered_json traced_json(const TracedJob& job, const TracedAccount& measured,
                                   const std::optional<StepAccount>& predicted) {
  Json out;
  const StepAccount& m = measured.mean;
  out["traced"] = {{"program", job.program}, {"device", job.device}, {"ranks", measured.ranks.size()}};
  if (predicted) out["predicted_step_s"] = predicted->step_s;
  out["measured_step_s"] = m.step_s;
  if (predicted) {
    out["ratio"] = m.step_s / predicted->step_s;
    out["predicted_breakdown_s"] = parts_json(predicted->parts);
  }
  out["measured_breakdown_s"] = parts_json(m.parts);
  if (predicted) {
    StepParts difference{};
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] = m.parts[i] - predicted->parts[i];
    out["difference_s"] = parts_json(difference);
  }
  Json operations = Json::array();
  for (const auto& key : collectives_of(m, predicted)) {
    const AxisCollectives is = found_in(m.collectives, key);
    Json one = {{"operations", fmt::format("{} {}", name(key.first), name(key.second))},
                {"count", std::llround(is.count)},
                {"compute_lane", false},
                {"measured_s", is.seconds}};
    if (predicted) {
      const AxisCollectives was = found_in(predicted->collectives, key);
      one["predicted_count"] = was.count;
      one["predicted_s"] = was.seconds;
    }
    operations.push_back(std::move(one));
  }
  out["operations"] = operations;
  Json ranks = Json::array();
  for (const RankAccount& r : measured.ranks) ranks.push_back(rank_json(r));
  out["traced_ranks"] = ranks;
  out["notes"] = job.remarks;
  return out;
}

}  // namespace sextant
