#include "core/timeline/machine_facts.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/base/former_keys.hpp"
#include "core/base/json_io.hpp"

namespace sextant {
namespace {

constexpr FormerKey kConcurrentWith{"beside", "concurrent_with"};  // of version 0.1, read until version 0.3

constexpr auto kMeasurement = [](auto& io, auto& m) {
  io.required("what", m.what);
  io.optional(kConcurrentWith.present, m.concurrent_with);
  io.required("median_us", m.median_us, at_least(0));
  io.optional("spread_us", m.spread_us, at_least(0));
  io.optional("samples", m.samples, at_least(0));
  io.optional("outliers", m.outliers, at_least(0));
  io.optional("rate_GBps", m.rate_GBps, at_least(0));
  io.optional("rate_TFLOPS", m.rate_TFLOPS, at_least(0));
};
constexpr auto kCondition = [](auto& io, auto& c) {
  io.required("at", c.at);
  io.optional("time_s", c.time_s, at_least(0));
  io.optional("sm_clock_MHz", c.sm_clock_MHz, at_least(0));
  io.optional("memory_clock_MHz", c.memory_clock_MHz, at_least(0));
  io.optional("temperature_C", c.temperature_C);
  io.optional("power_W", c.power_W, at_least(0));
  io.optional("limited_by", c.limited_by);
};
constexpr auto kFacts = [](auto& io, auto& f) {
  io.required("device", f.device);
  io.optional("driver", f.driver);
  io.optional("compute_capability", f.compute_capability);
  io.optional("libraries", f.libraries);
  io.optional("multiprocessors", f.multiprocessors, at_least(0));
  io.optional("memory_GiB", f.memory_GiB, at_least(0));
  io.optional("level2_MiB", f.level2_MiB, at_least(0));
  io.optional("outside_GiB", f.outside_GiB, between(0, 1e4));
  io.optional("most_sm_clock_MHz", f.most_sm_clock_MHz, at_least(0));
  io.optional("most_memory_clock_MHz", f.most_memory_clock_MHz, at_least(0));
  io.optional("power_limit_W", f.power_limit_W, at_least(0));
  io.optional("conditions", f.conditions);
  io.required("measurements", f.measurements);
};

}  // namespace

void to_json(nlohmann::json& j, const MachineMeasurement& m) { write_object(j, m, kMeasurement); }
void from_json(const nlohmann::json& j, MachineMeasurement& m) {
  if (!has_former(j, kConcurrentWith)) return read_object(j, m, kMeasurement);
  nlohmann::json present = j;
  take_present_key(present, kConcurrentWith);
  read_object(present, m, kMeasurement);
}
void to_json(nlohmann::json& j, const MachineCondition& c) { write_object(j, c, kCondition); }
void from_json(const nlohmann::json& j, MachineCondition& c) { read_object(j, c, kCondition); }
void to_json(nlohmann::json& j, const MachineFacts& f) { write_object(j, f, kFacts); }
void from_json(const nlohmann::json& j, MachineFacts& f) { read_object(j, f, kFacts); }

std::string former_measurement_key(const nlohmann::json& facts) {
  const auto measurements = facts.find("measurements");
  const bool former =
      measurements != facts.end() && std::ranges::any_of(*measurements, [](const nlohmann::json& m) {
        return has_former(m, kConcurrentWith);
      });
  return former ? change_text(kConcurrentWith) : "";
}

const MachineMeasurement* MachineFacts::find(const std::string& what,
                                             const std::string& concurrent_with) const {
  const auto it = std::ranges::find_if(measurements, [&](const MachineMeasurement& m) {
    return m.what == what && m.concurrent_with == concurrent_with;
  });
  return it == measurements.end() ? nullptr : &*it;
}

double MachineFacts::lengthening(const std::string& what, const std::string& concurrent_with) const {
  const MachineMeasurement *alone = find(what), *both = find(what, concurrent_with);
  return alone && both && alone->median_us > 0 ? both->median_us / alone->median_us : 0;
}

}  // namespace sextant
