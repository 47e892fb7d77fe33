// Tables of stated times of a plan's operations, and what the verbs predict from them.
#pragma once

#include <string>

#include "core/base/preset_path.hpp"
#include "core/cluster/topology.hpp"
#include "core/plan/plan_file.hpp"
#include "core/plan/plan_links.hpp"
#include "core/timeline/work_profile.hpp"
#include "cost_models/analytic.hpp"
#include "planner/lowering/lower.hpp"
#include "tests/tools/verbs/bad_input.hpp"

namespace sextant::bad_input {

class Profiles : public BadInput {
 protected:
  Profiles() { make("tiny.json", "dp2.z1.mbs2"); }
  static Words question() {
    return {"--model", "stories-260k", "--cluster", "laptop",         "--stack",
            "sextant", "--seq-len",    "64",        "--global-batch", "8"};
  }
  static void make(const std::string& file, const std::string& key) {
    ASSERT_EQ(call_in_full(Words{"simulate"} + question() + Words{"--plan", key, "-o", file}).code,
              ExitCode::ok);
  }
  // The works of a plan, so many times as long as modelled.
  static WorkProfile table(const std::string& plan, double times) {
    const PlanFile f = load_plan_file(plan);
    const Topology topology(f.cluster);
    const AnalyticCostModel model(f.cluster, f.stack, SEXTANT_SOURCE_DIR "/tools/presets");
    WorkProfile profile;
    profile.machine = "AMD EPYC 7742, 2 threads";
    profile.date = "2026-11-24";
    for (const Work& work :
         lower(f.model, f.training, plan_links(topology, f.plan), f.plan, f.stack, {.operands = false})
             .works) {
      const double us = 1e6 * times * model.price(work).duration.v;
      profile.works[work_key(work)] = {.mean_us = us, .median_us = us};
    }
    return profile;
  }
  static json answer(const Words& arguments) {
    const Called o = call_in_full(arguments + Words{"--json"});
    EXPECT_EQ(o.code, ExitCode::ok) << o.err;
    return json::parse(o.out);
  }
  static double simulated(const json& j) {
    return j.at("prediction").at("step_time_s").get<double>() - j.at("stragglers_and_host_s").get<double>();
  }
  static void sums_to_one(const json& shares) {
    double sum = 0;
    for (const char* part : {"measured_share", "interpolated_share", "analytic_share"})
      sum += shares.at(part).get<double>();
    EXPECT_NEAR(sum, 1, 1e-12);
  }
};

}  // namespace sextant::bad_input
