// How a calibration is shown: what was measured alone, which constants moved, how far each run was and is off, what a source
// that is left out would see, and the fields of --json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/calibration/leave_out.hpp"
#include "planner/validation/plausible.hpp"
#include "tools/inputs/calibrate_material.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

std::string calibration_summary(const Calibration&);
void print_in_vain(Session&, const Material&);
// What was measured by itself, before any whole step.
void print_measured_alone(Session&, const Material&);
// Pairs of runs that no constant can both give, with both times and what the fit makes of them.
void print_inconsistent_pairs(Session&, const Material&, const Calibration&,
                              const std::vector<InconsistentPair>&);
void print_constants(Session&, const Material&, const Calibration&);
// `peaks`: predicted, in GiB, by run; nothing where none was measured.
void print_residuals(Session&, const Material&, const Calibration&,
                     const std::vector<std::optional<double>>& peaks);
// Of the layouts of the shortlists `tried` the one to keep: what was measured is worth more than what is predicted.
void print_fastest_tried(Session&, const Material&, const std::vector<std::string>& tried);
void print_left_out(Session&, const std::vector<LeftOut>&);
// The last lines: where it was written to, and what to do with it; nothing where nothing would differ under it.
std::string next_step(const std::string& output, const Material&, const Calibration&);

nlohmann::ordered_json calibration_json(const Material&, const Calibration&,
                                        const std::vector<std::optional<double>>& peaks,
                                        const std::vector<LeftOut>&, const std::vector<InconsistentPair>&);

}  // namespace sextant
