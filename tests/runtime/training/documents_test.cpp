// System: training on sequences of several documents that do not see each other (--packing apart), under layouts of every
// kind. Expectation: losses, norms and state as when every document has a sequence of its own. Numbers: 1e-10 relative in fp64.
#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"
#include "runtime/training/training_run.hpp"
#include "tests/runtime/small_run.hpp"

namespace sextant::testing {
namespace {

constexpr int kBatch = 8, kSeq = 32;

// The tokens of sequence `sequence`, and where its second document begins; the one of sequence 3 is alone.
int cut_of(std::int64_t step, int sequence) {
  return sequence == 3 ? kSeq + 1 : 2 + static_cast<int>((step * 11 + sequence * 7) % (kSeq - 3));
}
std::vector<std::int32_t> tokens_of(std::int64_t step, int sequence) {
  std::vector<std::int32_t> tokens(kSeq + 1);
  synthetic_sequences(tiny_model().vocab_size, kBatch, 5)(step, sequence, tokens);
  return tokens;
}

SequenceSource packed() {
  return [](std::int64_t step, int sequence, std::span<std::int32_t> out) {
    std::ranges::copy(tokens_of(step, sequence), out.begin());
    if (const int cut = cut_of(step, sequence); cut <= kSeq)
      out[static_cast<std::size_t>(cut)] = ~out[static_cast<std::size_t>(cut)];
  };
}
// Sequence 2 s and 2 s + 1 are the documents of sequence s, filled up behind.
SequenceSource alone() {
  return [](std::int64_t step, int sequence, std::span<std::int32_t> out) {
    const std::vector<std::int32_t> tokens = tokens_of(step, sequence / 2);
    const auto cut = tokens.begin() + cut_of(step, sequence / 2);
    std::ranges::fill(out, ~0);
    if (sequence % 2 == 0)
      std::copy(tokens.begin(), cut, out.begin());
    else
      std::copy(cut, tokens.end(), out.begin());
  };
}

SmallResult run_of(const std::string& key, SequenceSource source, int batch, bool apart) {
  SmallRun how;
  how.dtype = Dtype::fp64;
  how.global_batch = batch;
  how.sequences = std::move(source);
  how.documents_apart = apart;
  return small_run(parse_plan_key(key), how);
}

double distance(const std::vector<double>& got, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(got.at(i) - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(difference / norm);
}

class Documents : public ::testing::TestWithParam<const char*> {
 protected:
  static const SmallResult& expected() {
    static const SmallResult result = run_of("dp1.mbs2", alone(), 2 * kBatch, false);
    return result;
  }
};

TEST_P(Documents, TrainAsIfEachWereAlone) {
  const SmallResult got = run_of(GetParam(), packed(), kBatch, true);
  EXPECT_LT(distance(got.loss, expected().loss), 1e-10);
  EXPECT_LT(distance(got.norm, expected().norm), 1e-10);
  ASSERT_EQ(got.state.size(), expected().state.size());
  for (const auto& [name, values] : expected().state)
    EXPECT_LT(distance(got.state.at(name), values), 1e-10) << name;
}

INSTANTIATE_TEST_SUITE_P(Layouts, Documents,
                         ::testing::Values("dp1.mbs1", "mbs4", "mbs2.sel", "mbs2.full", "tp2.sp.mbs2",
                                           "tp4.mbs1", "cp2.mbs2", "cp4.mbs1", "cp2.mbs2.sel",
                                           "cp2.tp2.sp.mbs2.full", "pp2.mbs1", "pp2.vp2.mbs1", "pp2.mbs1.zb",
                                           "dp4.z1.mbs1.b4K", "dp2.z2.mbs2.b4K", "dp2.z3.mbs1.b4K",
                                           "mbs2.ao2", "tp2.sp.cp2.pp2.mbs1.dp2.z1.b4K"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// Replicas with unequally many micro-batches, on a device that shares no memory with the host as well.
TEST(DocumentsOfUnequalReplicas, TrainAsIfEachWereAlone) {
  const SmallResult expected = run_of("dp1.mbs2", alone(), 2 * kBatch, false);
  for (const char* key : {"dp2.z1.mbs1.ga5-3", "dp2.z1.mbs1.ga2-6"}) {
    SmallRun how{
        .dtype = Dtype::fp64, .global_batch = kBatch, .sequences = packed(), .documents_apart = true};
    const SmallResult got = small_run(parse_plan_key(key), how);
    EXPECT_LT(distance(got.loss, expected.loss), 1e-10) << key;
    how.apart = true;
    EXPECT_EQ(small_run(parse_plan_key(key), how).loss, got.loss) << key << ", memory of its own";
    how.documents_apart = false;
    EXPECT_NE(small_run(parse_plan_key(key), how).loss, got.loss) << key << ", control";
  }
}

TEST(DocumentsControl, WithoutTheMaskTheySeeEachOther) {
  const SmallResult apart = run_of("cp2.mbs2", packed(), kBatch, true),
                    across = run_of("cp2.mbs2", packed(), kBatch, false);
  EXPECT_GT(distance(across.loss, apart.loss), 1e-4);
  EXPECT_GT(distance(across.norm, apart.norm), 1e-4);
}

}  // namespace
}  // namespace sextant::testing
