#include "planner/calibration/calibrated_constants.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "core/base/annotated.hpp"
#include "core/base/json_io.hpp"

namespace sextant {

namespace {

constexpr auto kRule = [](auto& io, auto& r) {
  io.required("of", r.of, kConstantOwnerNames);
  io.required("key", r.key);
  io.optional("per_generation", r.per_generation);
  io.optional("own_only", r.own_only);
  io.optional("presets_of", r.presets_of);
  io.optional("classes", r.classes);
  io.optional("cold_of", r.cold_of);
  io.optional("cold", r.cold, at_least(0));
  io.required("sigma", r.sigma, above(0));
  io.optional("low_factor", r.low_factor, above(0));
  io.optional("high_factor", r.high_factor, above(0));
  io.optional("kinship", r.kinship, at_least(0));
  for (const char* about : {"note", "origin", "source", "date"}) io.ignored(about);
};

double class_value(const CalibrationRules& rules, const std::string& stack, const std::string& key) {
  for (const StackClass& c : rules.classes)
    if (std::find(c.stacks.begin(), c.stacks.end(), stack) != c.stacks.end())
      for (const auto& [name, value] : c.values)
        if (name == key) return value;
  return 0;
}

std::string class_of(const CalibrationRules& rules, const std::string& stack) {
  for (const StackClass& c : rules.classes)
    if (std::find(c.stacks.begin(), c.stacks.end(), stack) != c.stacks.end()) return c.name;
  return "";
}

double device_prior(const std::string& generation, const ConstantRule& rule,
                    const std::filesystem::path& presets, bool cold, double& low, double& high) {
  const CostPreset preset = load_cost_preset(generation, presets / "cost");
  for (const ConstantRecord& r : preset.records) {
    if (r.key != rule.key) continue;
    const bool bounded = r.low > 0 && r.high > r.low;
    if (bounded) {
      low = r.low;
      high = r.high;
    }
    if (!cold) return r.value;
    return rule.cold > 0 ? rule.cold : bounded ? 0.5 * (r.low + r.high) : r.value;
  }
  throw ConfigError(Problem{"", "key", rule.key, "a constant of the cost presets", ""});
}

}  // namespace

void from_json(const nlohmann::json& j, ConstantRule& r) { read_object(j, r, kRule); }

CalibrationRules load_calibration_rules(const std::filesystem::path& preset_dir) {
  CalibrationRules rules;
  const auto path = preset_dir / "calibration/step_time.json";
  with_file(path.string(), [&] {
    const nlohmann::json j = read_plain_values(path);
    rules.noise = j.at("noise").get<double>();
    rules.own_noise = j.at("own_noise").get<double>();
    rules.own_width = j.at("own_width").get<double>();
    rules.own_huber = j.at("own_huber").get<double>();
    rules.own_tolerance = j.at("own_tolerance").get<double>();
    rules.own_residual = {j.at("own_residual").get<double>(), j.at("own_residual_doublings").get<double>()};
    rules.calibrated = j.at("calibrated").get<std::vector<ConstantRule>>();
    for (const auto& [name, c] : j.at("classes").items()) {
      StackClass one{name, c.at("stacks").get<std::vector<std::string>>(), {}};
      for (const auto& [key, value] : c.at("values").items())
        one.values.emplace_back(key, value.get<double>());
      rules.classes.push_back(std::move(one));
    }
  });
  return rules;
}

const ConstantRule& CalibrationRules::rule(const std::string& key) const {
  for (const ConstantRule& r : calibrated)
    if (r.key == key) return r;
  throw ConfigError(Problem{"", "key", key, "a constant that the calibration rules name", ""});
}

namespace {

// What the rules free of the presets' constants, or of a user's own.
class FreedConstants {
 public:
  FreedConstants(const CalibrationRules& rules, bool cold) : rules_(rules), cold_(cold) {}

  // 0 for a bound: the rule's factor of the prior.
  void add(const ConstantRule& rule, const std::string& owner, double prior, double low = 0,
           double high = 0) {
    const auto& movable = rule.presets_of;
    if (cold_ && !movable.empty() && std::find(movable.begin(), movable.end(), owner) == movable.end())
      return;
    if (cold_ && rule.of != ConstantOwner::device && rule.cold > 0) prior = rule.cold;
    if (const auto it = rule.cold_of.find(owner); cold_ && it != rule.cold_of.end()) prior = it->second;
    if (!(prior > 0)) return;  // a constant that is zero is a fact: the cost does not exist here
    if (cold_ && joins_class(rule, owner)) return;
    // The factor of the whole machine is what users' rows tell best, and what no preset knows.
    const double width = cold_ || rule.key == kMachineFactor ? 1 : rules_.own_width;
    out_.push_back({rule.of, owner, rule.key, prior, rule.sigma * width,
                    low > 0 ? low : prior * rule.low_factor, high > 0 ? high : prior * rule.high_factor});
    if (!cold_ || !(rule.kinship > 0)) return;
    const std::string kin = rule.of == ConstantOwner::stack ? class_of(rules_, owner) : "all";
    out_.back().kin = kin;
    out_.back().kinship = kin.empty() ? 0 : std::min(rule.kinship, 0.99);
  }
  std::vector<FreeConstant> take() { return std::move(out_); }

 private:
  // Whether another of the owner's class has the constant already, which is then the owner's as well.
  bool joins_class(const ConstantRule& rule, const std::string& owner) {
    for (const auto& group : rule.classes) {
      if (std::find(group.begin(), group.end(), owner) == group.end()) continue;
      const auto first = std::find_if(out_.begin(), out_.end(), [&](const FreeConstant& k) {
        return k.of == rule.of && k.key == rule.key &&
               std::find(group.begin(), group.end(), k.owner) != group.end();
      });
      if (first == out_.end()) return false;
      first->also.push_back(owner);
      return true;
    }
    return false;
  }

  const CalibrationRules& rules_;
  bool cold_;  // of the presets themselves
  std::vector<FreeConstant> out_;
};

}  // namespace

std::vector<FreeConstant> constants_of(std::span<const MeasuredRun> runs,
                                       const std::filesystem::path& preset_dir, const CalibrationRules& rules,
                                       FitOf fit_of) {
  const bool cold = fit_of == FitOf::presets;
  std::map<std::string, FabricSpec> fabrics;
  std::map<std::string, StackSpec> stacks;
  std::set<std::string> generations;
  for (const MeasuredRun& m : runs) {
    generations.insert(m.run.cluster.device.generation);
    stacks.try_emplace(m.run.stack.name, m.run.stack);
    if (m.run.cluster.nodes > 1) fabrics.try_emplace(m.run.cluster.fabric.name, m.run.cluster.fabric);
  }
  FreedConstants freed(rules, cold);
  for (const ConstantRule& rule : rules.calibrated) {
    if (rule.own_only && fit_of != FitOf::own_runs) continue;
    if (rule.of == ConstantOwner::device) {
      std::set<std::string> owners = generations;
      if (!rule.per_generation && !generations.empty()) owners = {*generations.begin()};
      for (const std::string& g : owners) {
        double low = 0, high = 0;
        const double prior = device_prior(g, rule, preset_dir, cold, low, high);
        freed.add(rule, rule.per_generation ? g : "", prior, low, high);
      }
    }
    if (rule.of == ConstantOwner::stack)
      for (const auto& [s, spec] : stacks) {
        double prior = setting_value(spec, rule.key);
        if (cold && prior > 0)
          if (const double by_class = class_value(rules, s, rule.key); by_class > 0) prior = by_class;
        freed.add(rule, s, prior);
      }
    if (rule.of == ConstantOwner::fabric)
      for (const auto& [name, spec] : fabrics) freed.add(rule, name, setting_value(spec, rule.key));
  }
  return freed.take();
}

std::vector<Setting> settings_of(const FreeConstant& k, double value) {
  std::vector<Setting> out = {{k.of, k.owner, k.key, value}};
  for (const std::string& owner : k.also) out.push_back({k.of, owner, k.key, value});
  return out;
}

std::vector<FreeConstant> rebased(std::vector<FreeConstant> calibrated, std::span<const Setting> settings) {
  for (FreeConstant& k : calibrated)
    for (const Setting& s : settings) {
      if (s.of != k.of || s.key != k.key || (!s.owner.empty() && s.owner != k.owner)) continue;
      k.low *= s.value / k.prior;
      k.high *= s.value / k.prior;
      k.prior = s.value;
    }
  return calibrated;
}

bool concerns(const FreeConstant& k, const ResolvedRun& run) {
  const auto owns = [&](const std::string& name) {
    return k.owner == name || std::find(k.also.begin(), k.also.end(), name) != k.also.end();
  };
  switch (k.of) {
    case ConstantOwner::device:
      return k.owner.empty() || k.owner == run.cluster.device.generation;
    case ConstantOwner::stack:
      return owns(run.stack.name);
    case ConstantOwner::fabric:
      return owns(run.cluster.fabric.name);
  }
  return false;
}

}  // namespace sextant
