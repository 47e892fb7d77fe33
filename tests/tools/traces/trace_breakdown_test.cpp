// Where the time of a traced step goes: against HolisticTraceAnalysis on real traces, against a count of every nanosecond, and against
// crafted traces of which every part is known.
#include "tools/traces/trace_breakdown.hpp"

#include <cmath>
#include <fstream>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/traces/trace_fixtures.hpp"
#include "tools/traces/gzip_input.hpp"
#include "tools/traces/kineto_trace.hpp"
#include "tools/traces/step_parts.hpp"

namespace sextant {
namespace {

using test::golden_trace;
using test::shipped_names;
using test::write_database;

// What HolisticTraceAnalysis 0.5.0 (PyPI; MIT) says of these files: get_temporal_breakdown and get_comm_comp_overlap with
// include_last_profiler_step. The traces are parts of its own tests/data at f4d0062: nccl_parser_config/nccl_data.json.gz (step 5) and
// trace_filter/sampled_rank-{0,1}.json.gz.
struct HtaFigures {
  const char* file;
  double idle_us, compute_us, non_compute_us, kernel_us, overlap_percent;
};
constexpr HtaFigures kHta[] = {
    {"real/ddp_a100_rank0.json.gz", 163803.824297, 38429.422, 11299.503859, 213532.750156, 14.31},
    {"real/a2a_rank0.json.gz", 675191.0, 210320.0, 337336.0, 1222847.0, 14.95},
    {"real/a2a_rank1.json.gz", 651136.0, 271973.0, 308077.0, 1231186.0, 19.93},
};

StepTime whole_time(const HtaFigures& hta, const KernelNames& names) {
  const RankTrace trace = read_kineto_trace(golden_trace(hta.file), names).at(0);
  return step_time(trace, whole_window(trace));
}
double overlap_percent(const StepTime& t) { return 100 * (1 - t.exposed_s() / t.communication_s); }

TEST(TraceBreakdown, AgreesWithHolisticTraceAnalysisOnRealTraces) {
  for (const HtaFigures& hta : kHta) {
    const StepTime t = whole_time(hta, shipped_names());
    EXPECT_NEAR(1e6 * t.step_s, hta.kernel_us, 1e-3 * hta.kernel_us) << hta.file;
    EXPECT_NEAR(1e6 * t.computing_s(), hta.compute_us, 1e-3 * hta.compute_us) << hta.file;
    EXPECT_NEAR(1e6 * t.idle_s(), hta.idle_us, 1e-3 * hta.idle_us) << hta.file;
    EXPECT_NEAR(1e6 * (t.exposed_s() + t.host_copy_s + t.device_copy_s), hta.non_compute_us,
                1e-3 * hta.non_compute_us)
        << hta.file;
    EXPECT_NEAR(overlap_percent(t), hta.overlap_percent, 0.01 * hta.overlap_percent) << hta.file;
  }
}

TEST(TraceBreakdown, RulesThatTakeCollectivesForComputeDoNotAgree) {
  const TempDir dir;
  std::ifstream in(test::preset_dir() / "kernel_names.json");
  nlohmann::json rules = nlohmann::json::parse(in);
  for (auto& rule : rules["kernels"])
    if (rule["class"] == "collective") rule["class"] = "gemm";
  dir.write("kernel_names.json", rules.dump());
  const StepTime t = whole_time(kHta[0], KernelNames(dir.path()));
  EXPECT_GT(std::abs(1e6 * t.computing_s() / kHta[0].compute_us - 1), 0.1);
}

// The parts of a random trace, nanosecond by nanosecond.
struct CountedParts {
  double computing = 0, exposed = 0, copies = 0, idle = 0, communication = 0;
};
CountedParts counted(const RankTrace& trace, const StepWindow& window) {
  CountedParts out;
  for (std::int64_t ns = window.begin_ns; ns < window.end_ns; ++ns) {
    bool compute = false, collective = false, copy = false;
    for (const DeviceActivity& a : trace.activities) {
      if (ns < a.begin_ns || ns >= a.end_ns) continue;
      compute |= computes(a.kind);
      collective |= a.kind == KernelClass::collective;
      copy |= a.kind == KernelClass::host_copy || a.kind == KernelClass::device_copy;
    }
    out.communication += collective;
    (compute ? out.computing : collective ? out.exposed : copy ? out.copies : out.idle) += 1;
  }
  return out;
}

TEST(TraceBreakdown, EveryNanosecondIsCountedOnce) {
  std::mt19937 dice(7);
  const auto throw_to = [&](int most) {
    return static_cast<std::int64_t>(dice() % static_cast<unsigned>(most));
  };
  for (int round = 0; round < 200; ++round) {
    RankTrace trace;
    trace.names = {"a"};
    for (int i = 0; i < 25; ++i) {
      DeviceActivity a;
      a.begin_ns = throw_to(300);
      a.end_ns = a.begin_ns + 1 + throw_to(30);
      a.kind = static_cast<KernelClass>(throw_to(8));
      a.collective = static_cast<CollectiveName>(throw_to(3));
      a.wait_ns = a.kind == KernelClass::collective ? throw_to(static_cast<int>(a.end_ns - a.begin_ns)) : 0;
      trace.activities.push_back(a);
    }
    std::ranges::sort(trace.activities, {}, &DeviceActivity::begin_ns);
    const StepWindow window{0, 40, 280};
    const StepTime t = step_time(trace, window);
    const CountedParts oracle = counted(trace, window);
    EXPECT_NEAR(1e9 * t.computing_s(), oracle.computing, 1e-6);
    EXPECT_NEAR(1e9 * t.exposed_s(), oracle.exposed, 1e-6);
    EXPECT_NEAR(1e9 * (t.host_copy_s + t.device_copy_s), oracle.copies, 1e-6);
    EXPECT_NEAR(1e9 * t.idle_s(), oracle.idle, 1e-6);
    EXPECT_NEAR(1e9 * t.communication_s, oracle.communication, 1e-6);
    EXPECT_NEAR(1e9 * (t.computing_s() + t.exposed_s() + t.host_copy_s + t.device_copy_s + t.idle_s()), 240,
                1e-6);
  }
}

// Four ranks, PP 2 and DP 2; expected.json says how each step was put together.
class CraftedTraces : public testing::Test {
 protected:
  static TracedJob read(const std::vector<std::string>& files) {
    std::vector<std::filesystem::path> paths;
    for (const std::string& file : files) paths.push_back(golden_trace("pp2_dp2/" + file));
    return read_traces(paths, shipped_names());
  }
  static std::string rank_file(int rank) { return fmt::format("rank{}_trace.json.gz", rank); }
  static TracedAccount account(const TracedJob& job) {
    return traced_account(job, GroupAxes(shipped_names(), RankDegrees{.dp = 2, .pp = 2}));
  }
  static nlohmann::json expected() {
    std::ifstream in(golden_trace("pp2_dp2/expected.json"));
    return nlohmann::json::parse(in);
  }
  static double part(const RankAccount& r, StepPart p) {
    return r.account.parts[static_cast<std::size_t>(p)];
  }
  static const nlohmann::json& shorter(const nlohmann::json& steps) {
    return steps.at(0).at("step") <= steps.at(1).at("step") ? steps.at(0) : steps.at(1);
  }
  // Where the account differs from what is known of the rank's shorter step; two nanoseconds are forgiven.
  static std::vector<std::string> differences(const RankAccount& r, const nlohmann::json& known) {
    const nlohmann::json& step = shorter(known.at(std::to_string(r.rank)));
    std::vector<std::string> out;
    for (std::size_t i = 0; i < kStepPartNames.size(); ++i) {
      const double is = r.account.parts[i], was = step.value(std::string(kStepPartNames[i]), 0.0);
      if (std::abs(is - was) > 2e-9) out.push_back(fmt::format("{} {} {}", kStepPartNames[i], is, was));
    }
    return out;
  }
};

TEST_F(CraftedTraces, EveryPartOfEveryRankIsFound) {
  const TracedJob job = read({rank_file(3), rank_file(1), rank_file(0), rank_file(2)});
  EXPECT_EQ(job.world, 4);
  EXPECT_EQ(job.device, "NVIDIA H100 80GB HBM3");
  const TracedAccount all = account(job);
  const nlohmann::json known = expected();
  ASSERT_EQ(all.ranks.size(), 4U);
  for (const RankAccount& r : all.ranks) {
    EXPECT_EQ(differences(r, known), std::vector<std::string>{}) << r.rank;
    const auto& steps = known.at(std::to_string(r.rank));
    const double first = steps.at(0).at("step").get<double>(), second = steps.at(1).at("step").get<double>();
    EXPECT_NEAR(r.shortest_s, std::min(first, second), 2e-9);
    EXPECT_NEAR(r.longest_s, std::max(first, second), 2e-9);
    EXPECT_NEAR(sum(r.account.parts), r.account.step_s, 1e-9);
    const CollectiveTable& collectives = r.account.collectives;  // all of its transfers, without their waits
    EXPECT_NEAR(collectives.at({GroupAxis::pp, CollectiveName::send_recv}).seconds, 8 * 40e-6, 2e-9);
    EXPECT_EQ(collectives.at({GroupAxis::pp, CollectiveName::send_recv}).count, 8);
    EXPECT_EQ(r.account.attention_forward, 8);  // two layers, four micro-batches
  }
  ASSERT_EQ(job.remarks.size(), 1U);
  EXPECT_NE(job.remarks[0].find("clocks of the ranks are 21.9 s apart"), std::string::npos);
}

TEST_F(CraftedTraces, ARankAloneCannotTellWaitingFromTransfer) {
  const TracedJob job = read({rank_file(0)});
  const TracedAccount alone = account(job);
  const nlohmann::json known = expected();
  EXPECT_NE(differences(alone.ranks.at(0), known), std::vector<std::string>{});
  const auto& step = known.at("0").at(0);
  // The wait for the slower replica is taken for transfer; transfers between stages are held to the shortest, which is a send.
  EXPECT_NEAR(part(alone.ranks[0], StepPart::exposed_dp),
              step.at("exposed_dp").get<double>() + step.at("stragglers").get<double>(), 2e-9);
  EXPECT_NEAR(part(alone.ranks[0], StepPart::bubble), step.at("bubble").get<double>(), 2e-9);
  const std::string remarks = fmt::format("{}", fmt::join(job.remarks, "\n"));
  EXPECT_NE(remarks.find("1 of 4 ranks have a trace (0)"), std::string::npos) << remarks;
  EXPECT_NE(remarks.find("could not be matched"), std::string::npos) << remarks;
}

std::string unpacked(const std::filesystem::path& file) {
  GzipInput input(file);
  std::istream stream(&input);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The same two ranks as Nsight Systems exports them: one file, a process each, no process groups.
TEST_F(CraftedTraces, NsightSystemsShowsTheSame) {
  const TempDir dir;
  const std::string file = (dir.path() / "report.sqlite").string();
  write_database(file, "BEGIN;" + unpacked(golden_trace("pp2_dp2/nsys_two_ranks.sql.gz")) + "COMMIT;");
  ASSERT_EQ(trace_format_of(file), TraceFormat::nsys);
  const TracedJob job = read_traces({file}, shipped_names());
  EXPECT_EQ(job.device, "NVIDIA H100 80GB HBM3");
  const TracedAccount both = account(job);
  ASSERT_EQ(both.ranks.size(), 2U);
  const nlohmann::json known = expected();
  for (const RankAccount& r : both.ranks) {
    const auto& step = known.at(std::to_string(r.rank)).at(0);
    EXPECT_NEAR(r.account.step_s, step.at("step").get<double>(), 2e-9);
    for (const StepPart p : {StepPart::gemm, StepPart::attention, StepPart::element_wise, StepPart::optimizer,
                             StepPart::offload, StepPart::host})
      EXPECT_NEAR(part(r, p), step.value(std::string(name(p)), 0.0), 2e-9) << name(p);
    // What waits is not told; together it is the same.
    const auto known_of = [&](const char* key) { return step.value(key, 0.0); };
    EXPECT_NEAR(part(r, StepPart::exposed_pp) + part(r, StepPart::exposed_dp),
                known_of("exposed_pp") + known_of("exposed_dp") + known_of("bubble") + known_of("stragglers"),
                4e-9);
  }
}

}  // namespace
}  // namespace sextant
