#include "tools/output/comparison_text.hpp"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/words.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

// None of what is predicted to take no time: sums of spans leave 1e-18 s there.
std::string ratio_text(double predicted, double measured) {
  if (predicted < 1e-9) return "";
  const double ratio = measured / predicted;
  return fmt::format("{:.{}f}", ratio, ratio < 100 ? 2 : 0);
}
std::string ms(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }

}  // namespace

void print_comparison(Session& session, const TimelineComparison& c) {
  auto& out = session.terminal.out;
  Table parts({{"part of the step", Align::left},
               {"predicted ms", Align::right},
               {"measured ms", Align::right},
               {"ratio", Align::right},
               {"of the difference %", Align::right, 1}});
  const double step_difference = c.measured.step.v - c.predicted.step.v;
  for (int k = 0; k < kTimeCategories; ++k) {
    const auto i = static_cast<std::size_t>(k);
    const double p = c.predicted.mean[i], m = c.measured.mean[i];
    if (std::max(p, m) < 1e-4 * c.measured.step.v) continue;
    parts.add_row({words(name(static_cast<TimeCategory>(k))), ms(p), ms(m), ratio_text(p, m),
                   step_difference != 0 ? fmt::format("{:.0f}", 100 * (m - p) / step_difference) : ""});
  }
  parts.add_row({"step", ms(c.predicted.step.v), ms(c.measured.step.v),
                 ratio_text(c.predicted.step.v, c.measured.step.v), step_difference != 0 ? "100" : ""});
  parts.emphasize_last_row();
  out << parts.render(session.terminal, session.common.wide) << '\n';

  constexpr std::size_t kShown = 12;
  Table classes({{"operations", Align::left},
                 {"count", Align::right, 2},
                 {"predicted ms", Align::right},
                 {"measured ms", Align::right},
                 {"ratio", Align::right},
                 {"lane", Align::left, 1}});
  for (std::size_t i = 0; i < std::min(kShown, c.classes.size()); ++i) {
    const ClassComparison& k = c.classes[i];
    classes.add_row({k.operations, fmt::format("{}", k.count), ms(k.predicted_s), ms(k.measured_s),
                     ratio_text(k.predicted_s, k.measured_s), k.compute_lane ? "compute" : "overlapped"});
  }
  out << classes.render(session.terminal, session.common.wide);
  if (c.classes.size() > kShown)
    out << fmt::format("(the {} classes that differ most of {}; --json has all)\n", kShown, c.classes.size());
}

nlohmann::ordered_json comparison_json(const TimelineComparison& c) {
  Json classes = Json::array();
  for (const ClassComparison& k : c.classes)
    classes.push_back({{"operations", k.operations},
                       {"count", k.count},
                       {"compute_lane", k.compute_lane},
                       {"predicted_s", k.predicted_s},
                       {"measured_s", k.measured_s}});
  Json difference = Json::object();
  for (std::size_t i = 0; i < c.measured.mean.size(); ++i)
    difference[name(static_cast<TimeCategory>(i))] = c.measured.mean[i] - c.predicted.mean[i];
  return {{"predicted_step_s", c.predicted.step.v},
          {"measured_step_s", c.measured.step.v},
          {"ratio", c.step_ratio()},
          {"predicted_breakdown_s", time_split_json(c.predicted.mean)},
          {"measured_breakdown_s", time_split_json(c.measured.mean)},
          {"difference_s", difference},
          {"operations", classes}};
}

}  // namespace sextant
