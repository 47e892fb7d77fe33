#include "tools/adaptation/decision_text.hpp"

#include <fmt/format.h>

#include "core/plan/plan_key.hpp"

namespace sextant {

using Json = nlohmann::ordered_json;

Json layout_json(const Layout& layout) {
  Json j = {{"plan", plan_key(layout.plan)}};
  for (const GpuPlace& gpu : layout.idle) j["idle"].push_back({{"node", gpu.node}, {"gpu", gpu.gpu}});
  return j;
}

std::string layout_text(const Layout& layout) {
  return layout.idle.empty() ? plan_key(layout.plan)
                             : fmt::format("{} ({} GPU{} idle)", plan_key(layout.plan), layout.idle.size(),
                                           layout.idle.size() == 1 ? "" : "s");
}

std::string decision_text(const Decision& d) {
  const std::string what =
      d.changes() ? fmt::format("{} in place of {}: ", layout_text(d.to), layout_text(d.from)) : "";
  return fmt::format("decision {} behind step {} ({}): {}{}", d.number, d.step, d.trigger, what, d.why);
}

Json decision_json(const Decision& d) {
  Json j = {{"decision", d.number},   {"kind", name(d.kind)},       {"trigger", d.trigger},
            {"step", d.step},         {"onset", d.onset},           {"seen", d.seen},
            {"evidence", d.evidence}, {"from", layout_json(d.from)}};
  if (d.changes()) j["to"] = layout_json(d.to);
  j["now_step_time_s"] = d.now.v;
  j["then_step_time_s"] = d.then.v;
  j["move_s"] = d.move.v;
  j["uncertainty"] = d.uncertainty;
  j["doubt"] = d.uncertainty;  // its name until version 0.3
  j["steps_left"] = d.steps_left;
  j["gain_s"] = d.gain().v;
  j["why"] = d.why;
  j["alternatives"] = Json::array();
  for (const Forecast& f : d.alternatives) {
    Json a = layout_json(f.layout);
    a["predicted_step_time_s"] = f.step.v;
    j["alternatives"].push_back(a);
  }
  return j;
}

std::string moved_text(const Json& changed) {
  const double moved_GB = changed.value("moved_GB", 0.0);
  if (moved_GB <= 0) return "";
  return fmt::format(", {:.3g} GB of state moved in {:.3g} s ({:.3g} GB to one rank at most)", moved_GB,
                     changed.value("moving_s", 0.0), changed.value("moved_to_one_rank_GB", 0.0));
}

}  // namespace sextant
