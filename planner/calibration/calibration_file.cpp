#include "planner/calibration/calibration_file.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"

namespace sextant {

namespace {

constexpr auto kConstantFields = [](auto& io, auto& c) {
  io.required("of", c.of, kConstantOwnerNames);
  io.optional("owner", c.owner);
  io.required("key", c.key);
  io.optional("preset", c.preset, at_least(0));
  io.required("value", c.value, above(0));
  io.optional("sigma", c.sigma, at_least(0));
  io.optional("preset_sigma", c.preset_sigma, at_least(0));
};

constexpr auto kRanOut = [](auto& io, auto& r) {
  io.required("key", r.key);
  io.required("stack", r.stack);
  io.required("device", r.device);
  io.required("predicted_peak_GiB", r.predicted_peak_GiB, above(0));
  io.required("available_memory_GiB", r.available_memory_GiB, above(0));
};

constexpr auto kCalibratedRun = [](auto& io, auto& r) {
  io.required("generation", r.generation);
  io.required("tp", r.tp, at_least(1));
  io.required("pp", r.pp, at_least(1));
  io.required("dp", r.dp, at_least(1));
  io.required("micro_batch_tokens", r.micro_batch_tokens, above(0));
  io.required("parameters", r.parameters, above(0));
  io.required("zero_stage", r.zero_stage, at_least(0));
  io.required("weight", r.weight);
};

constexpr auto kResidual = [](auto& io, auto& r) {
  io.required("sigma", r.sigma, above(0));
  io.required("doublings", r.doublings, above(0));
  io.required("runs", r.runs);
  io.optional("covariance", r.covariance);
  io.optional("with_constants", r.with_constants);
};

constexpr auto kCalibrationFields = [](auto& io, auto& f) {
  io.required("schema", f.schema);
  io.required("constants", f.constants);
  io.optional("covariance", f.covariance);
  io.optional("residual", f.residual);
  io.optional("runs", f.runs);
  io.optional("profiles", f.profiles);
  io.optional("out_of_memory", f.out_of_memory);
  io.optional("error_before_percent", f.error_before_percent, at_least(0));
  io.optional("error_after_percent", f.error_after_percent, at_least(0));
  io.optional("error_left_out_percent", f.error_left_out_percent, at_least(0));
  io.optional("sextant", f.sextant);
  io.optional("created", f.created);
  io.optional("command", f.command);
};

// Refuses what use_settings() would refuse later, far from the file.
void check(const CalibrationFile& f) {
  std::vector<Problem> problems;
  if (f.schema != CalibrationFile{}.schema)
    problems.push_back({"", "schema", f.schema, CalibrationFile{}.schema, ""});
  const std::size_t n = f.constants.size();
  if (!f.covariance.empty() && f.covariance.size() != n * n)
    problems.push_back({"", "covariance", fmt::format("{} numbers", f.covariance.size()),
                        fmt::format("{} x {} numbers, or none", n, n), ""});
  if (f.residual) {
    const std::size_t m = f.residual->runs.size();
    const auto sized = [&](const char* key, const std::vector<double>& list, std::size_t rows) {
      if (!list.empty() && list.size() != rows * m)
        problems.push_back({"", fmt::format("residual.{}", key), fmt::format("{} numbers", list.size()),
                            fmt::format("{} x {} numbers, or none", rows, m), ""});
    };
    sized("covariance", f.residual->covariance, m);
    sized("with_constants", f.residual->with_constants, n);
  }
  for (std::size_t i = 0; i < n; ++i)
    if (!may_be_calibrated(f.constants[i].of, f.constants[i].key))
      problems.push_back({"", fmt::format("constants[{}].key", i), f.constants[i].key,
                          fmt::format("a constant of a {} that may be calibrated",
                                      kConstantOwnerNames[static_cast<std::size_t>(f.constants[i].of)]),
                          ""});
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

}  // namespace

void to_json(nlohmann::json& j, const CalibratedConstant& c) { write_object(j, c, kConstantFields); }
void from_json(const nlohmann::json& j, CalibratedConstant& c) { read_object(j, c, kConstantFields); }
void to_json(nlohmann::json& j, const CalibratedRun& r) { write_object(j, r, kCalibratedRun); }
void from_json(const nlohmann::json& j, CalibratedRun& r) { read_object(j, r, kCalibratedRun); }
void to_json(nlohmann::json& j, const CalibratedResidual& r) { write_object(j, r, kResidual); }
void from_json(const nlohmann::json& j, CalibratedResidual& r) { read_object(j, r, kResidual); }
void to_json(nlohmann::json& j, const RanOut& r) { write_object(j, r, kRanOut); }
void from_json(const nlohmann::json& j, RanOut& r) { read_object(j, r, kRanOut); }
void to_json(nlohmann::json& j, const CalibrationFile& f) { write_object(j, f, kCalibrationFields); }
void from_json(const nlohmann::json& j, CalibrationFile& f) {
  read_object(j, f, kCalibrationFields);
  check(f);
}

std::vector<Setting> CalibrationFile::settings() const {
  std::vector<Setting> out;
  for (const CalibratedConstant& c : constants) out.push_back({c.of, c.owner, c.key, c.value});
  return out;
}

Residual CalibrationFile::learned() const {
  Residual out;
  if (!residual) return out;
  out.rule = {residual->sigma, residual->doublings};
  for (const CalibratedRun& r : residual->runs)
    out.runs.push_back(
        {{r.generation, r.tp, r.pp, r.dp, r.micro_batch_tokens, r.parameters, r.zero_stage}, r.weight});
  return out;
}

std::optional<double> CalibrationFile::memory_limit_GiB(const std::string& stack,
                                                        const std::string& device) const {
  constexpr double kBelow = 0.999;
  std::optional<double> limit;
  for (const RanOut& r : out_of_memory)
    if (const double below = kBelow * std::min(r.predicted_peak_GiB, r.available_memory_GiB);
        r.stack == stack && r.device == device)
      limit = std::min(limit.value_or(below), below);
  return limit;
}

CalibrationFile calibration_file_of(const Calibration& calibration) {
  CalibrationFile f;
  // A constant of a class is written once for each of its owners: they move together.
  std::vector<std::size_t> index;
  const std::size_t n = calibration.constants.size();
  for (std::size_t i = 0; i < n; ++i) {
    const ConstantFit& c = calibration.constants[i];
    for (const Setting& s : settings_of(c.constant, c.value)) {
      f.constants.push_back({s.of, s.owner, s.key, c.constant.prior, s.value, c.sigma, c.constant.sigma});
      index.push_back(i);
    }
  }
  if (calibration.covariance.size() == n * n)
    for (const std::size_t row : index)
      for (const std::size_t column : index) f.covariance.push_back(calibration.covariance[row * n + column]);
  if (const LearnedResidual& learned = calibration.residual; !learned.of.empty()) {
    CalibratedResidual& r = f.residual.emplace();
    r.sigma = learned.of.rule.sigma;
    r.doublings = learned.of.rule.length;
    for (const Residual::Run& run : learned.of.runs) {
      const LayoutPoint& p = run.point;
      r.runs.push_back(
          {p.generation, p.tp, p.pp, p.dp, p.micro_batch_tokens, p.parameters, p.zero_stage, run.weight});
    }
    r.covariance = learned.covariance;
    const std::size_t m = learned.of.runs.size();
    for (const std::size_t row : index)
      for (std::size_t run = 0; run < m; ++run)
        r.with_constants.push_back(learned.with_constants[row * m + run]);
  }
  f.error_before_percent = calibration.mape_before;
  f.error_after_percent = calibration.mape_after;
  f.error_left_out_percent = calibration.taken ? calibration.mape_left_out : calibration.mape_before;
  return f;
}

CalibrationFile load_calibration(const std::filesystem::path& path) {
  return load_json<CalibrationFile>(path);
}

void save_calibration(const std::filesystem::path& path, const CalibrationFile& file) {
  write_file_atomic(path, nlohmann::json(file).dump(2) + "\n");
}

}  // namespace sextant
