// System: matrix products and attention on the GPU, through the libraries and by own tiles. Expectation: what the
// CPU's reference table gives, for fresh random inputs, odd extents, any alignment, into poisoned outputs.
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/graph/block_tensors.hpp"
#include "kernels/positions.hpp"
#include "tests/cuda/twin.hpp"

namespace sextant::testing {
namespace {

class CudaGemms : public GpuTest {};

struct AttentionCase {
  int batch, heads, kv_heads, d, seq, cp = 1, rank = 0;
  int window = 0;
  bool alibi = false, documents = false;
};

// Where the document of each query begins: others in every sequence.
std::vector<std::int32_t> documents_of(const AttentionCase& c) {
  std::vector<std::int32_t> all;
  for (int b = 0; c.documents && b < c.batch; ++b)
    for (const std::int32_t p : context_positions(c.seq, c.cp, c.rank)) {
      const std::int32_t length = 23 + 18 * b;
      all.push_back(p < length / 2 ? 0 : length / 2 + (p - length / 2) / length * length);
    }
  return all;
}

// Both passes of one rank's attention on both sides: what they are given, and what they write.
class AttentionTrial {
 public:
  AttentionTrial(Dtype dtype, const AttentionCase& c)
      : dtype_(dtype),
        case_(c),
        q_positions_(context_positions(c.seq, c.cp, c.rank)),
        k_positions_(gathered_positions(c.seq, c.cp)),
        documents_(documents_of(c)),
        queries_(dtype, q_rows(), q_cols()),
        kv_(dtype, k_rows(), 2 * k_cols()),
        dout_(dtype, q_rows(), q_cols()) {}

  // What the GPU is told wrong: its scale is `of_the_scale` of the CPU's, ...
  struct Wrong {
    double of_the_scale = 1;
    int window = 0;  // more
    bool no_distances = false, no_documents = false;
  };
  void run(const KernelTable& gpu_table) const { run(gpu_table, Wrong()); }
  void run(const KernelTable& gpu_table, const Wrong& wrong) const {
    on_both(gpu_table, [&](const KernelTable& k, bool gpu, NativeStream stream) {
      const Wrong told = gpu ? wrong : Wrong();
      AttentionShape shape{.batch = case_.batch,
                           .heads = case_.heads,
                           .kv_heads = case_.kv_heads,
                           .head_dim = case_.d,
                           .q_positions = q_positions_.on(gpu),
                           .k_positions = k_positions_.on(gpu),
                           .window = case_.window + told.window,
                           .segments = case_.cp,
                           .scale = told.of_the_scale / std::sqrt(static_cast<double>(case_.d))};
      if (case_.documents && !told.no_documents) shape.q_documents = documents_.on(gpu);
      if (case_.alibi && !told.no_distances) shape.slopes = slopes_.on(gpu);
      const auto keys = [&](const Twin& x) { return x.on(gpu).column_range(0, k_cols()); };
      const auto values = [&](const Twin& x) { return x.on(gpu).column_range(k_cols(), k_cols()); };
      k.attention_forward({.shape = shape,
                           .q = queries_.on(gpu),
                           .k = keys(kv_),
                           .v = values(kv_),
                           .out = out_.on(gpu),
                           .lse = lse_.on(gpu),
                           .stream = stream});
      k.attention_backward({.shape = shape,
                            .q = queries_.on(gpu),
                            .k = keys(kv_),
                            .v = values(kv_),
                            .out = out_.on(gpu),
                            .lse = lse_.on(gpu),
                            .dout = dout_.on(gpu),
                            .dq = dq_.on(gpu),
                            .dk = keys(dkv_),
                            .dv = values(dkv_),
                            .workspace = workspace_.on(gpu),
                            .stream = stream});
    });
  }

  // The names of what is not as on the CPU; empty when all is.
  std::string unlike() const {
    const double bound = bound_of(dtype_, 3);
    std::string found;
    const auto compare = [&](const char* name, const Twin& t, std::int64_t first, std::int64_t cols,
                             double limit) {
      const double distance = relative_distance(to_doubles(t.downloaded().view().column_range(first, cols)),
                                                to_doubles(t.on(false).column_range(first, cols)));
      if (!(distance <= limit)) found += fmt::format("{} {:.1e} ", name, distance);
    };
    compare("out", out_, 0, q_cols(), bound);
    compare("lse", lse_, 0, case_.heads, dtype_ == Dtype::bf16 ? 1e-4 : bound_of(wide_, 3));
    compare("dv", dkv_, k_cols(), k_cols(), bound);
    if (case_.seq == 1 || case_.window == 1) return found;  // of one key dq and dk are but rounding
    compare("dq", dq_, 0, q_cols(), bound);
    compare("dk", dkv_, 0, k_cols(), bound);
    return found;
  }

 private:
  std::int64_t q_rows() const { return k_rows() / case_.cp; }
  std::int64_t k_rows() const { return std::int64_t{case_.batch} * case_.seq; }
  std::int64_t q_cols() const { return std::int64_t{case_.heads} * case_.d; }
  std::int64_t k_cols() const { return std::int64_t{case_.kv_heads} * case_.d; }

  Dtype dtype_;
  AttentionCase case_;
  Dtype wide_ = accumulator_of(dtype_);
  TwinList q_positions_, k_positions_, documents_;
  Twin queries_, kv_, dout_;  // kv and dkv: keys, then values
  Twin out_ = Twin::poisoned(dtype_, q_rows(), q_cols()), lse_ = Twin::poisoned(wide_, q_rows(), case_.heads),
       dq_ = Twin::poisoned(dtype_, q_rows(), q_cols()),
       dkv_ = Twin::poisoned(dtype_, k_rows(), 2 * k_cols()),
       workspace_ = Twin::poisoned(
           wide_, 1, attention_core_elements(case_.seq / case_.cp, case_.heads, case_.kv_heads, case_.d)),
       slopes_ = Twin(wide_, 1, case_.heads, alibi_slopes(case_.heads));
};

// Heads that models have, alone and in groups, over few tokens and many; and what is odd, or over several ranks.
std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> all;
  for (const int d : {64, 128})
    for (const int group : {1, 4, 8})
      for (const int tokens : {1, 7, 129}) {
        const int kv_heads = tokens > 7 ? 1 : 2, sequences = tokens > 7 || group == 8 ? 1 : 2;
        all.push_back({sequences, kv_heads * group, kv_heads, d, tokens});
      }
  for (const AttentionCase& c : {AttentionCase{1, 4, 4, 128, 256},
                                 {1, 8, 2, 128, 192},
                                 {1, 2, 1, 16, 40},
                                 {1, 3, 3, 20, 33},
                                 {2, 4, 2, 64, 80, 2},
                                 {1, 2, 2, 32, 120, 5},
                                 {1, 2, 1, 160, 40},
                                 {1, 1, 1, 256, 33}})
    for (int rank = 0; rank < c.cp; ++rank) {
      all.push_back(c);
      all.back().rank = rank;
    }
  return all;
}

// By own tiles and by the library in tests of their own: racecheck is run over the former alone.
void expect_attention(bool reference) {
  for (const Dtype dtype : kDtypes)
    for (const AttentionCase& c : attention_cases()) {
      if (left_out() || (dtype == Dtype::fp64 && c.d > 128)) continue;  // below
      const AttentionTrial trial(dtype, c);
      trial.run(*cuda_kernels(reference ? KernelSet::reference : KernelSet::fast));
      EXPECT_EQ(trial.unlike(), "") << label(reference ? "attention tiles" : "attention", dtype, c.seq, c.d,
                                             c.heads * 100 + c.kv_heads * 10 + c.cp);
    }
}
TEST_F(CudaGemms, AttentionByTiles) { expect_attention(true); }
TEST_F(CudaGemms, AttentionByTheLibrary) { expect_attention(false); }

// Own tiles give the same figures, many times later: whether the library served is asked by itself.
TEST_F(CudaGemms, TheLibraryServesPlainAttention) {
  if (cuda_libraries().attention.empty()) GTEST_SKIP() << "cuDNN was not found";
  for (const int d : {64, 128})
    for (const int kv_heads : {1, 2, 8}) {
      const AttentionTrial trial(Dtype::bf16, {1, 8, kv_heads, d, 256});
      trial.run(table());
      EXPECT_EQ(trial.unlike(), "") << d << " x " << kv_heads;
    }
  for (const AttentionCase& c :
       {AttentionCase{.batch = 1, .heads = 8, .kv_heads = 2, .d = 128, .seq = 256, .window = 100},
        {.batch = 1, .heads = 8, .kv_heads = 8, .d = 64, .seq = 256, .alibi = true}}) {
    const AttentionTrial trial(Dtype::bf16, c);
    trial.run(table());
    EXPECT_EQ(trial.unlike(), "") << c.d << (c.alibi ? " alibi" : " window");
  }
  EXPECT_EQ(attention_fallback().find("refused"), std::string::npos) << attention_fallback();
  EXPECT_EQ(attention_second_choice(), "");
}

// Windows whose edge lies in a tile and between two, distances, documents, and all of it together; alone and over ranks.
std::vector<AttentionCase> masked_cases() {
  std::vector<AttentionCase> all;
  for (const AttentionCase& c :
       {AttentionCase{.batch = 1, .heads = 2, .kv_heads = 1, .d = 16, .seq = 70, .window = 1},
        {.batch = 1, .heads = 4, .kv_heads = 2, .d = 16, .seq = 80, .window = 37},
        {.batch = 1, .heads = 2, .kv_heads = 2, .d = 64, .seq = 96, .window = 32},
        {.batch = 1, .heads = 3, .kv_heads = 3, .d = 16, .seq = 40, .alibi = true},
        {.batch = 2, .heads = 2, .kv_heads = 1, .d = 24, .seq = 40, .documents = true},
        {.batch = 2,
        .heads = 3,
        .kv_heads = 3,
        .d = 16,
        .seq = 60,
        .cp = 3,
        .window = 20,
        .alibi = true,
        .documents = true},
        {.batch = 1, .heads = 2, .kv_heads = 1, .d = 16, .seq = 96, .cp = 2, .window = 33}})
    for (int rank = 0; rank < c.cp; ++rank) {
      all.push_back(c);
      all.back().rank = rank;
    }
  return all;
}

// On an emulated GPU each in one format.
void expect_masks(bool reference) {
  std::size_t at = 0;
  for (const AttentionCase& c : masked_cases()) {
    const Dtype mine = kDtypes[at++ % 3];
    for (const Dtype dtype : kDtypes) {
      if (reference ? dtype != mine && left_out() : dtype != Dtype::bf16) continue;
      const AttentionTrial trial(dtype, c);
      trial.run(*cuda_kernels(reference ? KernelSet::reference : KernelSet::fast));
      EXPECT_EQ(trial.unlike(), "") << label(reference ? "masked tiles" : "masked attention", dtype, c.seq,
                                             c.d, c.window)
                                    << (c.alibi ? " alibi" : "") << (c.documents ? " documents" : "")
                                    << " rank " << c.rank << " of " << c.cp;
    }
  }
}
TEST_F(CudaGemms, MasksByTiles) { expect_masks(true); }
TEST_F(CudaGemms, MasksByTheLibrary) { expect_masks(false); }

// Negative controls: a window that is a key too wide, distances and documents that are left out.
TEST_F(CudaGemms, AnotherMaskIsSeen) {
  for (const bool reference : {true, false}) {
    const auto seen = [&](const AttentionCase& c, const AttentionTrial::Wrong& wrong) {
      const AttentionTrial trial(Dtype::bf16, c);
      trial.run(*cuda_kernels(reference ? KernelSet::reference : KernelSet::fast), wrong);
      const std::string unlike = trial.unlike();
      for (const char* name : {"out", "lse", "dv", "dq", "dk"})
        EXPECT_NE(unlike.find(name), std::string::npos) << name << " of: " << unlike;
    };
    seen({.batch = 1, .heads = 2, .kv_heads = 1, .d = 16, .seq = 40, .window = 9}, {.window = 1});
    seen({.batch = 1, .heads = 2, .kv_heads = 1, .d = 16, .seq = 40, .alibi = true}, {.no_distances = true});
    seen({.batch = 1, .heads = 2, .kv_heads = 1, .d = 16, .seq = 40, .documents = true},
         {.no_documents = true});
  }
}

// Own tiles read nothing of tiles of keys that the window hides as a whole: what is NaN there is seen nowhere, and is seen
// where the window reaches it.
TEST_F(CudaGemms, TilesOutsideOfTheWindowAreSkipped) {
  constexpr int kSeq = 96, kD = 16;
  const auto sums = [&](int window) {
    std::vector<std::int32_t> places(kSeq);
    for (int i = 0; i < kSeq; ++i) places[static_cast<std::size_t>(i)] = i;
    const TwinList keys(places), queries({places.begin() + 64, places.end()});
    std::vector<double> values(std::size_t{kSeq} * 2 * kD, 0.25);
    std::fill_n(values.begin(), 32 * 2 * kD, std::nan(""));  // the first tile
    const Twin q(Dtype::fp32, 32, kD), dout(Dtype::fp32, 32, kD), kv(Dtype::fp32, kSeq, 2 * kD, values);
    const Twin out = Twin::poisoned(Dtype::fp32, 32, kD), lse = Twin::poisoned(Dtype::fp32, 32, 1),
               dq = Twin::poisoned(Dtype::fp32, 32, kD), dkv = Twin::poisoned(Dtype::fp32, kSeq, 2 * kD);
    const AttentionShape shape{.heads = 1,
                               .kv_heads = 1,
                               .head_dim = kD,
                               .q_positions = queries.on(true),
                               .k_positions = keys.on(true),
                               .window = window};
    const auto half = [&](const Twin& x, int which) { return x.on(true).column_range(which * kD, kD); };
    test_gpu()->launch(test_stream(), [&](NativeStream s) {
      const KernelTable& table = *cuda_kernels(KernelSet::reference);
      table.attention_forward({.shape = shape,
                               .q = q.on(true),
                               .k = half(kv, 0),
                               .v = half(kv, 1),
                               .out = out.on(true),
                               .lse = lse.on(true),
                               .stream = s});
      table.attention_backward({.shape = shape,
                                .q = q.on(true),
                                .k = half(kv, 0),
                                .v = half(kv, 1),
                                .out = out.on(true),
                                .lse = lse.on(true),
                                .dout = dout.on(true),
                                .dq = dq.on(true),
                                .dk = half(dkv, 0),
                                .dv = half(dkv, 1),
                                .workspace = {},
                                .stream = s});
    });
    synchronize_gpu();
    double sum = 0;
    for (const Twin* t : {&out, &lse, &dq, &dkv})
      for (const double x : to_doubles(t->downloaded().view())) sum += x;
    return sum;
  };
  EXPECT_TRUE(std::isfinite(sums(33)));   // the first query sees keys 32 to 64
  EXPECT_FALSE(std::isfinite(sums(34)));  // control: a key more
}

// Negative control: a scale that is a twentieth off shows in all that depends on it, by tiles and by the library.
TEST_F(CudaGemms, AttentionOfAnotherScaleIsSeen) {
  for (const bool reference : {true, false})
    for (const Dtype dtype : kDtypes) {
      const AttentionTrial trial(dtype, {1, 2, 1, 64, 9});
      trial.run(*cuda_kernels(reference ? KernelSet::reference : KernelSet::fast), {.of_the_scale = 1.05});
      const std::string unlike = trial.unlike();
      for (const char* name : {"out", "lse", "dv", "dq", "dk"})
        EXPECT_NE(unlike.find(name), std::string::npos) << name << " of: " << unlike;
    }
}

// What shared memory does not hold is refused with its size, and nothing runs into it.
TEST_F(CudaGemms, HeadsBeyondTheSharedMemoryAreRefused) {
  const auto said = [&](Dtype dtype, int d) -> std::string {
    const Dtype wide = accumulator_of(dtype);
    const TwinList positions({0, 1, 2});
    const Twin x(dtype, 3, d), kv(dtype, 3, 2 * d), lse(wide, 3, 1),
        core(wide, 1, attention_core_elements(3, 1, 1, d));
    const AttentionShape shape{.batch = 1,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = d,
                               .q_positions = positions.on(true),
                               .k_positions = positions.on(true)};
    const TensorView k = kv.on(true).column_range(0, d), v = kv.on(true).column_range(d, d);
    try {
      test_gpu()->launch(test_stream(), [&](NativeStream s) {
        table().attention_backward({.shape = shape,
                                    .q = x.on(true),
                                    .k = k,
                                    .v = v,
                                    .out = x.on(true),
                                    .lse = lse.on(true),
                                    .dout = x.on(true),
                                    .dq = x.on(true),
                                    .dk = k,
                                    .dv = v,
                                    .workspace = core.on(true),
                                    .stream = s});
      });
    } catch (const BackendError& error) {
      return error.what();
    }
    synchronize_gpu();
    return "";
  };
  EXPECT_EQ(said(Dtype::fp64, 128), "");
  EXPECT_EQ(said(Dtype::bf16, 256), "");
  EXPECT_NE(said(Dtype::fp64, 256).find("heads of 256 channels in fp64 takes 257 KiB of shared memory"),
            std::string::npos)
      << said(Dtype::fp64, 256);
  EXPECT_NE(said(Dtype::bf16, 264).find("at most 256 channels"), std::string::npos);
}

void expect_gemms(bool reference) {
  struct Extent {
    std::int64_t m, n, k;
  };
  for (const Dtype dtype : kDtypes)
    for (const bool into_wide : {false, true})
      for (const Extent e : {Extent{1, 1, 1}, {7, 129, 95}, {128, 64, 256}, {129, 1, 1000}, {512, 384, 96}})
        for (const int form : {0, 1, 2, 3}) {
          const bool ta = form & 1, tb = form & 2;
          const Dtype c_type = into_wide ? accumulator_of(dtype) : dtype;
          for (const bool accumulate : {false, true}) {
            if (left_out()) continue;
            const Twin a(dtype, ta ? e.k : e.m, ta ? e.m : e.k),
                b(dtype, tb ? e.n : e.k, (tb ? e.k : e.n) + 8);
            const Twin c = accumulate ? Twin(c_type, e.m, e.n + 8) : Twin::poisoned(c_type, e.m, e.n + 8);
            on_both(*cuda_kernels(reference ? KernelSet::reference : KernelSet::fast),
                    [&](const KernelTable& k, bool gpu, NativeStream s) {
                      k.gemm({.a = a.on(gpu),
                              .b = b.on(gpu).column_range(0, tb ? e.k : e.n),
                              .c = c.on(gpu).column_range(0, e.n),
                              .transpose_a = ta,
                              .transpose_b = tb,
                              .accumulate = accumulate,
                              .stream = s});
                    });
            const auto got = to_doubles(c.downloaded().view().column_range(0, e.n)),
                       expected = to_doubles(c.on(false).column_range(0, e.n));
            EXPECT_LE(relative_distance(got, expected), bound_of(c_type, 4))
                << label(reference ? "gemm tiles" : "gemm", dtype, e.m, e.n, e.k) << " form " << form
                << (into_wide ? " wide" : "") << (accumulate ? " accumulate" : "");
          }
        }
}
TEST_F(CudaGemms, GemmsByTiles) { expect_gemms(true); }
TEST_F(CudaGemms, GemmsByTheLibrary) { expect_gemms(false); }

}  // namespace
}  // namespace sextant::testing
