#include "tools/output/calibration_text.hpp"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/calibration/calibration_file.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

std::string owner_text(const FreeConstant& k) {
  if (k.of == ConstantOwner::device) return k.owner.empty() ? "all devices" : k.owner;
  return k.also.empty() ? k.owner : fmt::format("{} and {} more of its class", k.owner, k.also.size());
}

}  // namespace

std::string calibration_summary(const Calibration& c) {
  if (!c.taken)
    return fmt::format(
        "{} runs: mean error {:.1f} %, which a fit does not better: {:.1f} % for a run that was left out of "
        "it. The "
        "presets stay; intervals know how far off these runs were. Runs of other layouts may show more",
        c.rows, c.mape_before, c.mape_left_out);
  const std::string all = fmt::format("{} run{}: mean error {:.1f} % before, {:.1f} % after", c.rows,
                                      c.rows == 1 ? "" : "s", c.mape_before, c.mape_after);
  return c.rows == 1 ? all : fmt::format("{}; {:.1f} % for a run that was left out", all, c.mape_left_out);
}

void print_inconsistent_pairs(Session& session, const Material& m, const Calibration& c,
                              const std::vector<InconsistentPair>& pairs) {
  constexpr std::size_t kShown = 5;
  const auto name = [](const MeasuredRun& r) {
    return r.at.empty() || r.at == r.id ? r.id : fmt::format("{} ({})", r.at, r.id);
  };
  for (std::size_t i = 0; i < pairs.size() && i < kShown; ++i) {
    const auto [fast, slow] = pairs[i];
    const double lower = m.runs[fast].step.v, upper = m.runs[slow].step.v, predicted = c.after[fast];
    print_wrapped(
        session.terminal.out, session.terminal,
        fmt::format(
            "inconsistent: {} took {:.4g} s and {} {:.4g} s, yet layout, model, batch, cluster and stack of "
            "both are the same. No constants give both: {} {:.4g} s, {:+.0f} % off the one and {:+.0f} % off "
            "the other, {}. Correct or remove the wrong one, or state what differed",
            name(m.runs[fast]), lower, name(m.runs[slow]), upper,
            c.taken ? "the fit predicts" : "the presets predict", predicted, 100 * (predicted / lower - 1),
            100 * (predicted / upper - 1),
            c.taken ? "and what it moved to lie between them moves every other prediction"
                    : "and a fit that lies between them was not taken"));
  }
  if (pairs.size() > kShown)
    session.terminal.out << fmt::format("... and {} more inconsistent pairs; --json has all\n",
                                        pairs.size() - kShown);
}

void print_constants(Session& session, const Material& m, const Calibration& c) {
  constexpr double kNoticed = 0.005;
  const std::vector<ConstantFit> alone = m.measured_alone();
  Table table({{"constant", Align::left},
               {"of", Align::left},
               {"preset", Align::right},
               {"fitted", Align::right},
               {"moved %", Align::right},
               {"+- %", Align::right},
               {"known", Align::left, 1}});
  std::size_t silent = 0, rejected = 0;
  for (const ConstantFit& k : c.constants) {
    const double moved = k.value / k.constant.prior - 1;
    const bool by_itself = std::any_of(alone.begin(), alone.end(), [&](const ConstantFit& a) {
      return a.constant.of == k.constant.of && a.constant.owner == k.constant.owner &&
             a.constant.key == k.constant.key;
    });
    if (!by_itself && !k.identified() && std::abs(moved) < kNoticed) {
      ++silent;
      continue;
    }
    if (!by_itself && !c.taken) {
      ++rejected;
      continue;
    }
    table.add_row({k.constant.key, owner_text(k.constant), fmt::format("{:.4g}", k.constant.prior),
                   fmt::format("{:.4g}", k.value), fmt::format("{:+.1f}", 100 * moved),
                   fmt::format("{:.1f}", 100 * k.sigma),
                   by_itself        ? "measured alone"
                   : k.at_limit()   ? "at its limit"
                   : k.identified() ? "from the data"
                                    : "not identified by the data"});
  }
  auto& out = session.terminal.out;
  if (!table.empty()) out << '\n' << table.render(session.terminal, session.common.wide);
  if (rejected > 0)
    out << fmt::format(
        "{} constant{} stay{} at the presets, since the fit that would move {} was not taken\n", rejected,
        rejected == 1 ? "" : "s", rejected == 1 ? "s" : "", rejected == 1 ? "it" : "them");
  if (silent > 0)
    out << fmt::format("{} more stay{} at the presets: the data determine {} too little\n", silent,
                       silent == 1 ? "s" : "", silent == 1 ? "it" : "them");
}

void print_residuals(Session& session, const Material& m, const Calibration& c,
                     const std::vector<std::optional<double>>& peaks) {
  constexpr std::size_t kShown = 20;
  std::vector<Column> columns = {{"run", Align::left},
                                 {"measured s", Align::right},
                                 {"before %", Align::right},
                                 {"after %", Align::right}};
  const bool memory = std::any_of(peaks.begin(), peaks.end(), [](const auto& p) { return p.has_value(); });
  if (memory)
    for (const Column& more : {Column{"peak GiB", Align::right}, Column{"off %", Align::right},
                               Column{"taken as", Align::left, 1}})
      columns.push_back(more);
  Table table(columns);
  for (std::size_t i = 0; i < m.runs.size() && i < kShown; ++i) {
    const double measured = m.runs[i].step.v;
    std::vector<std::string> cells = {m.runs[i].id, fmt::format("{:.4g}", measured),
                                      fmt::format("{:+.1f}", 100 * (c.before[i] / measured - 1)),
                                      fmt::format("{:+.1f}", 100 * (c.after[i] / measured - 1))};
    if (memory && peaks[i]) {
      const double peak = *m.runs[i].peak_memory_GiB;
      cells.insert(cells.end(),
                   {fmt::format("{:.1f}", peak), fmt::format("{:+.1f}", 100 * (*peaks[i] / peak - 1)),
                    m.runs[i].run.memory_kind});
    } else if (memory) {
      cells.insert(cells.end(), {"", "", ""});
    }
    table.add_row(std::move(cells));
  }
  session.terminal.out << '\n' << table.render(session.terminal, session.common.wide);
  if (m.runs.size() > kShown)
    session.terminal.out << fmt::format("... and {} more; --json has all\n", m.runs.size() - kShown);
  if (memory) session.terminal.out << "peaks are compared, not fitted: memory has no constants of your own\n";
}

void print_measured_alone(Session& session, const Material& m) {
  auto& out = session.terminal.out;
  for (const NetworkFit& n : m.networks) {
    std::string text = fmt::format("{} size{} of nccl-tests: mean error {:.1f} %", n.samples,
                                   n.samples == 1 ? "" : "s", n.mape_before);
    text += n.taken ? fmt::format(" before, {:.1f} % after", n.mape_after)
                    : fmt::format(", which a fit {}: {:.1f} %. The {} stay",
                                  n.costs_largest ? "betters only at the cost of the largest sizes"
                                                  : "does not better",
                                  n.mape_fit, n.idle_known ? "published tables" : "presets");
    if (!n.fabric.empty() && n.taken)
      text += n.idle_known ? fmt::format(
                                 ". This table was measured on an idle network: {}'s constants of whole "
                                 "steps are scaled by "
                                 "its ratio to published tables",
                                 n.fabric)
                           : fmt::format(
                                 ". This table was measured on an idle network, and no other of {} is known: "
                                 "whole steps get "
                                 "its constants as they are, and may turn out slower; give runs beside it",
                                 n.fabric);
    text += fmt::format(". Its largest size has {:.3g} GB/s of bus bandwidth, {:.0f} % of what {}",
                        n.bus_GBps, 100 * n.share_of_stated,
                        n.in_switch ? "all-reduces in the switch (NVLS) reach there" : "--cluster states");
    print_wrapped(out, session.terminal, text);
  }
  for (const ProfileFit& p : m.profiles) {
    out << fmt::format("{} operations of {}, profiled {}: mean error {:.1f} % before, {:.1f} % after\n",
                       p.works, p.machine, p.date.empty() ? "(no date)" : p.date, p.mape_before,
                       p.mape_after);
    if (p.constants.empty()) out << "  the profile determines no constant better than its preset\n";
    for (const ConstantFit& k : p.constants)
      out << fmt::format("  {} of {}: {:.4g} -> {:.4g} ({:+.1f} %), +- {:.1f} %\n", k.constant.key,
                         owner_text(k.constant), k.constant.prior, k.value,
                         100 * (k.value / k.constant.prior - 1), 100 * k.sigma);
  }
}

void print_in_vain(Session& session, const Material& m) {
  const auto say = [&](const std::string& text) {
    print_wrapped(session.terminal.out, session.terminal, text);
  };
  for (const TriedInVain& t : m.in_vain)
    say(fmt::format(
        "{} ran out of memory, {}: {:.1f} of {:.1f} GiB predicted, {:.0f} % to run out; its time is not "
        "fitted",
        t.what.key, t.foreseen() ? "as foreseen" : "which was not foreseen", t.what.predicted_peak_GiB,
        t.what.available_memory_GiB, 100 * t.chance));
  if (!m.in_vain.empty())
    say("plans of the same stack and device will be predicted to need less than that, under --calibration");
}

void print_fastest_tried(Session& session, const Material& m, const std::vector<std::string>& tried) {
  const MeasuredRun* fastest = nullptr;
  int count = 0;
  for (const MeasuredRun& r : m.runs) {
    if (std::find(tried.begin(), tried.end(), r.source) == tried.end()) continue;
    ++count;
    if (!fastest || r.step < fastest->step) fastest = &r;
  }
  if (count < 2) return;
  print_wrapped(
      session.terminal.out, session.terminal,
      fmt::format("fastest of the {} layouts tried: {}, {:.4g} s. Keep it until another is measured faster: "
                  "predictions that lie closer than their intervals decide nothing",
                  count, fastest->id, fastest->step.v));
}

void print_left_out(Session& session, const std::vector<LeftOut>& scores) {
  Table table({{"source left out", Align::left},
               {"rows", Align::right},
               {"error %", Align::right},
               {"median %", Align::right},
               {"after five rows %", Align::right},
               {"median %", Align::right},
               {"five chosen %", Align::right},
               {"median %", Align::right}});
  double all = 0, few = 0, chosen = 0;
  for (const LeftOut& s : scores) {
    table.add_row({s.source, fmt::format("{}", s.rows), fmt::format("{:.1f}", s.mape),
                   fmt::format("{:.1f}", s.median), fmt::format("{:.1f}", s.mape_few),
                   fmt::format("{:.1f}", s.median_few), fmt::format("{:.1f}", s.mape_chosen),
                   fmt::format("{:.1f}", s.median_chosen)});
    all += s.mape;
    few += s.mape_few;
    chosen += s.mape_chosen;
  }
  const auto n = static_cast<double>(std::max<std::size_t>(1, scores.size()));
  table.add_row({"mean over sources", "", fmt::format("{:.1f}", all / n), "", fmt::format("{:.1f}", few / n),
                 "", fmt::format("{:.1f}", chosen / n), ""});
  table.emphasize_last_row();
  session.terminal.out << '\n' << table.render(session.terminal, session.common.wide);
}

std::string next_step(const std::string& output, const Material& m, const Calibration& c) {
  constexpr double kNoticed = 0.005;
  const bool constants = std::ranges::any_of(c.constants, [&](const ConstantFit& k) {
    return std::abs(k.value / k.constant.prior - 1) > kNoticed || (c.taken && k.identified());
  });
  const bool layouts =
      std::ranges::any_of(c.residual.of.runs, [](const Residual::Run& r) { return r.weight != 0; });
  const std::string written = output.empty() ? "" : fmt::format("\nwritten: {}", output);
  if (!constants && !layouts && m.in_vain.empty())
    return written + "\nnothing was learned: steps are predicted as without a calibration\n";
  if (output.empty())
    return "\nnext: -o calibration.json keeps it for plan, simulate and validate --calibration\n";
  return fmt::format("{}\nnext: sextant plan --calibration {} ...\n", written, output);
}

namespace {

Json fitted_run_json(const MeasuredRun& r, double before, double after, const std::optional<double>& peak) {
  Json run = {{"run_id", r.id},
              {"plan", plan_key(r.run.plan)},
              {"measured_s", r.step.v},
              {"before_s", before},
              {"after_s", after}};
  if (peak) {
    run["measured_peak_GiB"] = *r.peak_memory_GiB;
    run["predicted_peak_GiB"] = *peak;
    run["memory_kind"] = r.run.memory_kind;
  }
  return run;
}

Json profile_fit_json(const ProfileFit& p) {
  Json constants = Json::array();
  for (const ConstantFit& k : p.constants)
    constants.push_back({{"of", kConstantOwnerNames[static_cast<std::size_t>(k.constant.of)]},
                         {"owner", k.constant.owner},
                         {"key", k.constant.key},
                         {"preset", k.constant.prior},
                         {"value", k.value},
                         {"sigma", k.sigma}});
  return {{"file", p.file},
          {"machine", p.machine},
          {"date", p.date},
          {"measured_operations", p.works},
          {"error_before_percent", p.mape_before},
          {"error_after_percent", p.mape_after},
          {"constants", constants}};
}

Json network_fit_json(const NetworkFit& n) {
  Json one = {{"sizes", n.samples},
              {"taken", n.taken},
              {"fit_error_percent", n.mape_fit},
              {"error_before_percent", n.mape_before},
              {"error_after_percent", n.mape_after},
              {"bus_GBps", n.bus_GBps},
              {"share_of_stated", n.share_of_stated},
              {"in_switch", n.in_switch}};
  if (!n.fabric.empty()) {
    one["fabric"] = n.fabric;
    one["idle_known"] = n.idle_known;
  }
  return one;
}

Json left_out_json(const LeftOut& s) {
  return {{"source", s.source},
          {"rows", s.rows},
          {"error_percent", s.mape},
          {"error_after_five_rows_percent", s.mape_few},
          {"error_after_five_chosen_percent", s.mape_chosen}};
}

Json in_vain_json(const TriedInVain& t) {
  return {{"key", t.what.key},
          {"foreseen", t.foreseen()},
          {"predicted_peak_GiB", t.what.predicted_peak_GiB},
          {"available_memory_GiB", t.what.available_memory_GiB},
          {"chance_of_overflow", t.chance}};
}

}  // namespace

Json calibration_json(const Material& m, const Calibration& c,
                      const std::vector<std::optional<double>>& peaks, const std::vector<LeftOut>& left_out,
                      const std::vector<InconsistentPair>& pairs) {
  Json runs = Json::array(), networks = Json::array();
  for (std::size_t i = 0; i < m.runs.size(); ++i)
    runs.push_back(fitted_run_json(m.runs[i], c.before[i], c.after[i], peaks[i]));
  for (const NetworkFit& n : m.networks) networks.push_back(network_fit_json(n));
  Json out = {{"calibration", nlohmann::json(calibration_file_of(c))},
              {"taken", c.taken},
              {"fit_error_left_out_percent", c.mape_left_out},
              {"runs", runs},
              {"networks", networks}};
  for (const ProfileFit& p : m.profiles) out["profiles"].push_back(profile_fit_json(p));
  for (const auto& [fast, slow] : pairs)
    out["inconsistencies"].push_back({{"run_ids", {m.runs[fast].id, m.runs[slow].id}},
                                      {"at", {m.runs[fast].at, m.runs[slow].at}},
                                      {"measured_s", {m.runs[fast].step.v, m.runs[slow].step.v}},
                                      {"after_s", c.after[fast]}});
  for (const TriedInVain& t : m.in_vain) out["out_of_memory"].push_back(in_vain_json(t));
  if (!m.warnings.empty()) out["warnings"] = m.warnings;
  if (!m.notes.empty()) out["notes"] = m.notes;
  for (const LeftOut& s : left_out) out["left_out"].push_back(left_out_json(s));
  return out;
}

}  // namespace sextant
