#include "tools/verbs/refit_memory.hpp"

#include <algorithm>
#include <cmath>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/plan/stack_spec.hpp"
#include "planner/calibration/fit_source.hpp"
#include "planner/calibration/leave_out_memory.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {

using Json = nlohmann::ordered_json;

namespace {

std::vector<RunRow> memory_rows(const std::vector<std::string>& run_files) {
  std::vector<RunRow> rows;
  for (const std::string& file : run_files) {
    std::vector<RunRow> more = read_runs(file);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace

std::vector<SourceScore> memory_left_out(const std::vector<std::string>& run_files,
                                         const std::filesystem::path& preset_dir) {
  return leave_one_source_out_memory(memory_rows(run_files), load_framework_map(preset_dir), preset_dir);
}

std::vector<RefittedMemory> refit_memory(const std::vector<std::string>& run_files,
                                         const std::filesystem::path& preset_dir) {
  const std::vector<RunRow> rows = memory_rows(run_files);
  const FrameworkMap map = load_framework_map(preset_dir);
  std::vector<RefittedMemory> out;
  for (const MemoryPlan& plan : load_memory_plans(preset_dir)) {
    RefittedMemory one{plan.stacks, {}, calibrate_memory(rows, map, preset_dir, plan), ""};
    if (one.fit.constants.empty()) continue;
    const StackMemory now = load_stack(plan.stacks.front(), preset_dir).memory;
    for (const FittedConstant& c : one.fit.constants) one.presets.push_back(memory_constant(now, c.key));
    one.source = fit_source(plan, one.fit);
    out.push_back(std::move(one));
  }
  return out;
}

void print_refitted(Session& session, const std::vector<RefittedMemory>& all) {
  Table table({{"memory of", Align::left},
               {"constant", Align::left},
               {"preset", Align::right},
               {"fitted", Align::right},
               {"moved %", Align::right},
               {"+-", Align::right},
               {"peaks", Align::right, 1},
               {"fit or not", Align::right, 1}});
  for (const RefittedMemory& one : all)
    for (std::size_t i = 0; i < one.fit.constants.size(); ++i) {
      const FittedConstant& c = one.fit.constants[i];
      const double preset = one.presets[i];
      table.add_row({i == 0 ? one.stacks.front() : "", c.key, fmt::format("{:.4g}", preset),
                     fmt::format("{:.4g}", c.value),
                     preset > 0 ? fmt::format("{:+.1f}", 100 * (c.value / preset - 1)) : "",
                     fmt::format("{:.2g}", c.sigma), i == 0 ? fmt::format("{}", one.fit.peaks) : "",
                     i == 0 ? fmt::format("{}", one.fit.outcomes) : ""});
    }
  if (!table.empty()) session.terminal.out << '\n' << table.render(session.terminal, session.common.wide);
}

void print_memory_left_out(Session& session, const std::vector<SourceScore>& scores) {
  Table table({{"memory, source left out", Align::left},
               {"peaks", Align::right},
               {"error %", Align::right},
               {"OOM found", Align::right},
               {"false OOM", Align::right}});
  SourceScore all;
  int sources = 0;
  const auto add = [&](const std::string& name, const SourceScore& s) {
    const int real = s.oom_true + s.oom_missed;
    table.add_row({name, s.memory_rows > 0 ? fmt::format("{}", s.memory_rows) : "",
                   s.memory_rows > 0 ? fmt::format("{:.1f}", s.memory_mape) : "",
                   real > 0 ? fmt::format("{} of {}", s.oom_true, real) : "",
                   fmt::format("{}", s.oom_false)});
  };
  for (const SourceScore& s : scores) {
    add(s.source, s);
    all.oom_true += s.oom_true;
    all.oom_false += s.oom_false;
    all.oom_missed += s.oom_missed;
    all.memory_rows += s.memory_rows;
    if (s.memory_rows > 0) {
      ++sources;
      all.memory_mape += s.memory_mape;
    }
  }
  if (table.empty()) return;
  all.memory_mape /= std::max(1, sources);
  add("mean over sources", all);
  table.emphasize_last_row();
  session.terminal.out << '\n' << table.render(session.terminal, session.common.wide);
}

nlohmann::ordered_json memory_left_out_json(const std::vector<SourceScore>& scores) {
  auto out = nlohmann::ordered_json::array();
  for (const SourceScore& s : scores)
    out.push_back({{"source", s.source},
                   {"peaks", s.memory_rows},
                   {"error_percent", s.memory_mape},
                   {"oom_true", s.oom_true},
                   {"oom_false", s.oom_false},
                   {"oom_missed", s.oom_missed}});
  return out;
}

nlohmann::ordered_json to_json(const std::vector<RefittedMemory>& all) {
  Json out = Json::array();
  for (const RefittedMemory& one : all) {
    Json constants = Json::array();
    for (std::size_t i = 0; i < one.fit.constants.size(); ++i) {
      const FittedConstant& c = one.fit.constants[i];
      constants.push_back(
          {{"key", c.key}, {"preset", one.presets[i]}, {"value", c.value}, {"sigma", c.sigma}});
    }
    out.push_back({{"stacks", one.stacks},
                   {"peaks", one.fit.peaks},
                   {"outcomes", one.fit.outcomes},
                   {"objective_at_presets", one.fit.before},
                   {"objective_at_fit", one.fit.after},
                   {"fitted_to", one.source},
                   {"constants", constants}});
  }
  return out;
}

}  // namespace sextant
