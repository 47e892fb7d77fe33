// Reading traces: names into classes, steps, folders, and files that are damaged, of other jobs, or no traces.
#include <fstream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/traces/trace_fixtures.hpp"
#include "tools/traces/group_axes.hpp"
#include "tools/traces/kineto_trace.hpp"

namespace sextant {
namespace {

using test::kernel_event;
using test::kineto_text;
using test::shipped_names;
using test::step_event;

// Names as traces have them: of HolisticTraceAnalysis' and torchtitan's traces, and of kernels of the libraries named.
TEST(KernelNames, AreClassified) {
  using K = KernelClass;
  const std::pair<const char*, K> names[] = {
      {"nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN", K::gemm},
      {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off",
       K::gemm},
      {"ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", K::gemm},
      {"void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(Params)", K::gemm},
      {"void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(cublasSplitKParams<float>)",
       K::gemm},
      {"triton_tem_fused_mm_3", K::gemm},
      {"Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1", K::gemm},
      {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4> >(Flash_fwd_params)",
       K::attention},
      {"void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloop> > "
       ">",
       K::attention},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x64", K::attention},
      {"fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)",
       K::attention},
      {"triton_tem_fused_flex_attention_0", K::attention},
      {"triton_poi_fused__scaled_dot_product_flash_attention_3", K::element_wise},
      {"triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3", K::element_wise},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >",
       K::element_wise},
      {"void transformer_engine::normalization::rmsnorm_bwd_tuned_kernel<>(BackwardKernelParams)",
       K::element_wise},
      {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float> >",
       K::optimizer},
      {"void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>", K::optimizer},
      {"void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*>", K::optimizer},
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", K::collective},
      {"ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", K::collective},
      {"userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)", K::collective},
      {"Memcpy HtoD (Pinned -> Device)", K::host_copy},
      {"Memcpy DtoD (Device -> Device)", K::device_copy},
      {"Memset (Device)", K::device_copy},
      {"my_own_secret_thing", K::other}};
  for (const auto& [kernel, kind] : names)
    EXPECT_EQ(name(shipped_names().class_of(kernel)), name(kind)) << kernel;
  using C = CollectiveName;
  const std::tuple<const char*, const char*, C> collectives[] = {
      {"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "", C::reduce_scatter},
      {"ncclDevKernel_Generic(x)", "_allgather_base", C::all_gather},
      {"ncclDevKernel_SendRecv(x)", "all_to_allv", C::all_to_all},
      {"ncclDevKernel_SendRecv(x)", "coalesced", C::send_recv},
      {"ncclDevKernel_Generic(x)", "", C::unnamed}};
  for (const auto& [kernel, said, kind] : collectives)
    EXPECT_EQ(name(shipped_names().collective_of(kernel, said)), name(kind)) << kernel << said;
}

TEST(KernelNames, BadRulesAreNamed) {
  const TempDir dir;
  dir.write(
      "kernel_names.json",
      R"({"kernels": [{"words": ["x"], "class": "gem"}], "collectives": [], "groups": [], "steps": []})");
  try {
    KernelNames bad(dir.path());
    FAIL() << "no class of that name";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("gemm"), std::string::npos) << e.what();
  }
}

TEST(GroupAxes, AreToldByRanksThenWordsThenWhatIsPossible) {
  const RankDegrees tp_pp_dp{.tp = 2, .dp = 2, .pp = 2};
  const GroupAxes axes(shipped_names(), tp_pp_dp);
  const auto axis = [&](const ProcessGroup& g, CollectiveName c = CollectiveName::all_reduce) {
    return name(axes.axis_of(g, c, 0));
  };
  EXPECT_EQ(axis({"1", "", 2, {0, 1}}), "tp");
  EXPECT_EQ(axis({"1", "mesh_tp", 2, {0, 2}}), "dp");  // ranks are surer than words
  EXPECT_EQ(axis({"1", "", 2, {0, 4}}), "pp");
  EXPECT_EQ(axis({"0", "default_pg", 8, {0, 1, 2, 3, 4, 5, 6, 7}}), "dp");
  EXPECT_EQ(axis({"1", "TENSOR_MODEL_PARALLEL_GROUP", 2, {}}), "tp");
  EXPECT_EQ(axis({"1", "DATA_PARALLEL_GROUP_WITH_CP", 2, {}}), "dp");
  EXPECT_EQ(axis({}, CollectiveName::send_recv), "pp");
  EXPECT_EQ(axis({}), "unknown");  // over TP or DP
  const GroupAxes only_dp(shipped_names(), RankDegrees{.dp = 8});
  EXPECT_EQ(name(only_dp.axis_of({}, CollectiveName::all_gather, 0)), "dp");
  EXPECT_EQ(name(GroupAxes(shipped_names(), std::nullopt)
                     .axis_of({"1", "mesh_pp", 0, {}}, CollectiveName::send_recv, 0)),
            "pp");
}

class TraceReading : public testing::Test {
 protected:
  // Ends with an error that has these words.
  void refused(const std::function<void()>& read, const std::vector<std::string>& told) {
    try {
      read();
      FAIL() << "expected an error with: " << fmt::format("{}", fmt::join(told, ", "));
    } catch (const ConfigError& e) {
      for (const std::string& word : told)
        EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  }
  void refused_file(const std::string& text, const std::vector<std::string>& told) {
    const auto file = dir_.write("bad.json", text);
    refused([&] { read_traces({file}, shipped_names()); }, told);
  }
  TracedJob read(const std::vector<std::string>& texts) {
    std::vector<std::filesystem::path> files;
    for (std::size_t i = 0; i < texts.size(); ++i)
      files.push_back(dir_.write(fmt::format("t{}.json", i), texts[i]));
    return read_traces(files, shipped_names());
  }
  static std::vector<std::string> small_events() {
    return {kernel_event("gemm", 100, 50, 7, 60), kernel_event("gemm", 160, 50, 7, 70),
            step_event(3, 50, 200)};
  }
  TempDir dir_;
};

TEST_F(TraceReading, TimesSince1970KeepTheirNanoseconds) {
  const TracedJob job = read({kineto_text({R"({"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,
    "ts":1712195495502094.501,"dur":2.025,"args":{"device":0,"stream":7}})"})});
  EXPECT_EQ(job.ranks.at(0).trace.activities.at(0).begin_ns, 1712195495502094501);
  EXPECT_EQ(job.ranks.at(0).trace.activities.at(0).end_ns, 1712195495502096526);
}

// Of a damaged file: no sum or difference of them may overflow.
TEST_F(TraceReading, TimesOfNoClockAreRefused) {
  const auto kernel = [](const std::string& ts, const std::string& dur) {
    return kineto_text({R"({"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":)" + ts +
                        R"(,"dur":)" + dur +
                        R"(,"args":{"device":0,"stream":7,"In msg nelems":9223372036854775807}})"});
  };
  for (const char* far : {"9997001111111111", "-9997001111111111", "9223372036854775807", "1e300", "9e17",
                          "9.9e15", "99970011111111111111", "9223372036854775.807"}) {
    refused_file(kernel(far, "1"), {"bad.json", "a hundred years"});
    if (*far != '-') refused_file(kernel("1", far), {"bad.json", "a hundred years"});
  }
  EXPECT_EQ(read({kernel("1712195495502094", "2")}).ranks.at(0).trace.activities.size(), 1U);
  EXPECT_EQ(read({kernel("1e3", "2e0")}).ranks.at(0).trace.activities.at(0).end_ns, 1002000);
  EXPECT_EQ(read({kernel("-5.25", "2")}).ranks.at(0).trace.activities.at(0).begin_ns, -5250);
  // Nor may bytes: elements of no memory there is, both ways.
  for (const std::string elements : {"9223372036854775807", "-9223372036854775807", "-1000"}) {
    const std::string reduction =
        R"({"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_f32_RING_LL","pid":0,"tid":7,"ts":1,"dur":2,)"
        R"("args":{"device":0,"stream":7,"dtype":"Float","In msg nelems":)" +
        elements + R"(,"Out msg nelems":)" + elements + "}}";
    EXPECT_GE(read({kineto_text({reduction})}).ranks.at(0).trace.activities.at(0).bytes, 0) << elements;
  }
  // What is no kernel is not looked at.
  EXPECT_EQ(read({kineto_text({kernel_event("gemm", 100, 50, 7, 60),
                               R"({"ph":"M","name":"x","ts":9997001111111111})"})})
                .ranks.size(),
            1U);
}

TEST_F(TraceReading, AStepReachesFromItsFirstKernelToThatOfTheNext) {
  // The device runs 100 us behind the host: step 3's last kernel ends within the host's step 4.
  const TracedJob job = read({kineto_text({step_event(3, 0, 100), kernel_event("gemm", 90, 30, 7, 10),
                                           kernel_event("gemm", 130, 40, 7, 90), step_event(4, 100, 100),
                                           kernel_event("gemm", 180, 20, 7, 110)})});
  const auto& steps = job.ranks.at(0).steps;
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].number, 3);
  EXPECT_EQ(steps[0].begin_ns, 90000);
  EXPECT_EQ(steps[0].end_ns, 180000);
  EXPECT_EQ(steps[1].end_ns, 280000);  // as long as its mark
}

TEST_F(TraceReading, WithoutMarksStepsReachFromOptimizerToOptimizer) {
  std::vector<std::string> events;
  for (int step = 0; step < 3; ++step) {
    events.push_back(kernel_event("gemm", 1000 * step, 500));
    events.push_back(kernel_event("multi_tensor_apply_kernel<L2Norm>", 1000 * step + 600, 20));
    events.push_back(kernel_event("multi_tensor_apply_kernel<AdamFunctor>", 1000 * step + 700, 100));
  }
  const TracedJob job = read({kineto_text(events)});
  ASSERT_EQ(job.ranks.at(0).steps.size(), 2U);
  EXPECT_EQ(job.ranks.at(0).steps[0].begin_ns, 800000);
  EXPECT_EQ(job.ranks.at(0).steps[1].end_ns, 2800000);
  EXPECT_NE(job.remarks.at(0).find("2 steps were taken from optimizer to optimizer"), std::string::npos);
  events.resize(3);
  EXPECT_NE(read({kineto_text(events)}).remarks.at(0).find("whole trace is taken as one step"),
            std::string::npos);
}

TEST_F(TraceReading, FoldersAreSearchedAndSeveralProfilesInThemNamed) {
  dir_.write("profile/iteration_10/rank0_trace.json", kineto_text(small_events()));
  dir_.write("profile/iteration_10/notes.json", "{}");
  EXPECT_EQ(trace_files_in(dir_.path() / "profile").size(), 1U);
  EXPECT_TRUE(trace_files_in(dir_.path()).empty());
  dir_.write("profile/iteration_20/rank0_trace.json", kineto_text(small_events()));
  refused([&] { trace_files_in(dir_.path() / "profile"); }, {"iteration_10, iteration_20", "name one"});
}

TEST_F(TraceReading, BadFilesSayWhatIsWrong) {
  const std::string whole = kineto_text(small_events());
  refused_file(whole.substr(0, whole.size() / 2), {"bad.json", "ends in the middle", "Profile again"});
  refused_file(R"({"traceEvents": [)"
               "\x01"
               R"(oops]})",
               {"no JSON at byte"});
  refused_file(kineto_text({step_event(1, 0, 5)}), {"none of a GPU", "ProfilerActivity.CUDA"});
  refused_file(R"({"a": 1})", {"traceEvents", "PyTorch profiler"});
  const auto packed = dir_.path() / "cut.json.gz";
  std::filesystem::copy(test::golden_trace("pp2_dp2/rank0_trace.json.gz"), packed);
  std::filesystem::permissions(packed, std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::filesystem::resize_file(packed, 4000);
  refused([&] { read_traces({packed}, shipped_names()); },
          {"cut.json.gz", "ends in the middle of its packed data"});
  refused([&] { read_traces({dir_.path() / "absent.json"}, shipped_names()); }, {"absent.json"});
}

TEST_F(TraceReading, DamagedPackedDataIsNamedOnce) {
  const auto packed = dir_.path() / "bad.json.gz";
  std::filesystem::copy(test::golden_trace("pp2_dp2/rank0_trace.json.gz"), packed);
  std::filesystem::permissions(packed, std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  EXPECT_EQ(read_traces({packed}, shipped_names()).ranks.size(), 1U) << "control";
  std::fstream bytes(packed, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(2000).write("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  bytes.close();
  try {
    read_traces({packed}, shipped_names());
    FAIL() << "taken for whole";
  } catch (const ConfigError& e) {
    const std::string said = e.what();
    EXPECT_NE(said.find("invalid"), std::string::npos) << said;
    EXPECT_EQ(said.find("bad.json.gz"), said.rfind("bad.json.gz")) << said;
  }
}

TEST_F(TraceReading, DatabasesThatAreNoExports) {
  const auto file = dir_.write("x.sqlite", "SQLite format 3 and then nothing of the kind");
  refused([&] { read_traces({file}, shipped_names()); }, {"x.sqlite", "nsys export -t sqlite"});
  const auto other = dir_.path() / "other.sqlite";
  test::write_database(other, "CREATE TABLE bookmarks (id INTEGER)");
  refused([&] { read_traces({other}, shipped_names()); }, {"without StringIds"});
  test::write_database(
      other,
      "CREATE TABLE StringIds (id INTEGER, value TEXT); CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start "
      "INTEGER)");
  refused([&] { read_traces({other}, shipped_names()); }, {"--cuda-graph-trace=node"});
}

TEST_F(TraceReading, RanksAreOfOneJob) {
  const auto of = [&](int rank, int world, const char* device = "NVIDIA H100 80GB HBM3") {
    return kineto_text(small_events(), rank, world, device);
  };
  const TracedJob two = read({of(1, 4), of(0, 4)});
  EXPECT_EQ(two.ranks.front().trace.rank, 0);
  EXPECT_NE(two.remarks.at(0).find("2 of 4 ranks have a trace (0, 1)"), std::string::npos);
  refused([&] { read({of(0, 4), of(1, 8)}); }, {"world_size", "give the ranks of one job"});
  refused([&] { read({of(0, 2), of(1, 2, "NVIDIA A100-SXM4-80GB")}); }, {"deviceProperties"});
  refused([&] { read({of(0, 2), of(0, 2)}); }, {"0, step 3", "once"});
  refused([&] { read({of(5, 2)}); }, {"below the 2 ranks"});
}

}  // namespace
}  // namespace sextant
