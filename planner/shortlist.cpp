#include "planner/shortlist.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/file_io.hpp"
#include "core/json_io.hpp"
#include "planner/search.hpp"

namespace sextant {

namespace {

constexpr auto kTried = [](auto& io, auto& t) {
  io.optional("measured_step_s", t.measured_step_s, above(0));
  io.required("plan_file", t.plan);
};
constexpr auto kShortlist = [](auto& io, auto& s) {
  io.required("schema", s.schema);
  io.required("plans", s.plans);
};

double half_width(const Prediction& p) { return p.step_upper / p.step - 1; }
bool reaches(const Prediction& p, const Prediction& best) { return p.step_lower <= best.step; }

}  // namespace

int distance(const ParallelPlan& a, const ParallelPlan& b) {
  return (a.tp != b.tp) + (a.cp != b.cp) + (a.pp != b.pp) + (a.vp != b.vp) + (a.zero_stage != b.zero_stage) +
         (a.micro_batch != b.micro_batch) + (a.schedule != b.schedule) +
         (a.recompute.kind != b.recompute.kind) +
         (a.optimizer_offload != b.optimizer_offload || a.activation_offload != b.activation_offload);
}

std::vector<std::size_t> shortlist(std::span<const RankedPlan> ranked, int count) {
  std::vector<std::size_t> chosen;
  for (const int apart : {2, 1}) {  // near copies only where nothing else is left
    for (std::size_t i = 0; i < ranked.size() && static_cast<int>(chosen.size()) < count; ++i) {
      if (!reaches(ranked[i].prediction, ranked.front().prediction)) continue;
      if (std::all_of(chosen.begin(), chosen.end(),
                      [&](std::size_t c) { return distance(ranked[c].plan, ranked[i].plan) >= apart; }))
        chosen.push_back(i);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::optional<std::size_t> surer_tie(std::span<const RankedPlan> ranked) {
  std::optional<std::size_t> surest;
  for (std::size_t i = 1; i < ranked.size(); ++i) {
    const double mine = half_width(ranked[i].prediction);
    constexpr double kRounding = 1e-9;
    if (!ranked[i].tie || 2 * mine > (1 + kRounding) * half_width(ranked.front().prediction)) continue;
    if (!surest || mine < half_width(ranked[*surest].prediction)) surest = i;
  }
  return surest;
}

void to_json(nlohmann::json& j, const Tried& t) {
  write_object(j, t, kTried);
  if (!t.measured_step_s) j["measured_step_s"] = nullptr;  // the place where it belongs
}
void from_json(const nlohmann::json& j, Tried& t) {
  nlohmann::json stated = j;
  if (stated.is_object() && stated.contains("measured_step_s") && stated["measured_step_s"].is_null())
    stated.erase("measured_step_s");
  read_object(stated, t, kTried);
}
void to_json(nlohmann::json& j, const Shortlist& s) { write_object(j, s, kShortlist); }
void from_json(const nlohmann::json& j, Shortlist& s) {
  read_object(j, s, kShortlist);
  if (s.schema != Shortlist{}.schema)
    throw ConfigError(Problem{"", "schema", s.schema, Shortlist{}.schema, ""});
}

Shortlist load_shortlist(const std::filesystem::path& path) { return load_json<Shortlist>(path); }

void save_shortlist(const std::filesystem::path& path, const Shortlist& list) {
  write_file_atomic(path, nlohmann::json(list).dump(2) + "\n");
}

}  // namespace sextant
