// Work keys are read back as the same work, and a wrong key is refused with the word that is wrong.
#include "core/graph/work.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/base/decimal.hpp"
#include "core/base/error.hpp"
#include "tests/support/arbitrary.hpp"

namespace sextant {
namespace {

std::string refusal_of(std::string_view key) {
  try {
    parse_work_key(key);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(WorkKey, WritesTheDocumentedExamples) {
  BlockWork a;
  a.pass = Pass::forward;
  a.seq_q = a.seq_k = 2048;
  a.hidden = 5120;
  a.heads = a.kv_heads = 40;
  a.head_dim = 128;
  EXPECT_EQ(work_key(a), "attention forward bf16 b1 q2048 k2048 h5120 a40 kv40 d128 tp1");
  CollectiveWork c{CollectiveKind::all_gather, Bytes(20971520), {}, false};
  c.group.size = c.group.ranks_per_node = 8;
  c.group.node_bandwidth = BytesPerSecond(235e9);
  c.group.node_latency = Seconds(2.5e-6);
  c.group.switched = true;
  EXPECT_EQ(work_key(c), "all_gather 20971520B g8 nodes1 per8 in235GBps/2.5us switched");
  EXPECT_EQ(work_key(CopyWork{Bytes(4096), CopyDirection::host_to_device}), "copy host_to_device 4096B");
  EXPECT_EQ(work_key(StateWork{StateKind::update, 1000, Dtype::bf16, Dtype::fp32, true}),
            "state update n1000 bf16 fp32 host");
}

RC_GTEST_PROP(WorkKey, RoundTripsExactly, ()) {
  const Work w = arbitrary::work();
  const std::string key = work_key(w);
  RC_LOG() << key;
  RC_ASSERT(parse_work_key(key) == w);
  RC_ASSERT(work_key(parse_work_key(key)) == key);
}

TEST(WorkKey, RefusesWhatIsWrongAndNamesIt) {
  EXPECT_NE(refusal_of("atention forward bf16 b1 tp1").find("did you mean attention?"), std::string::npos);
  EXPECT_NE(refusal_of("attention sideways bf16 b1 tp1").find("'sideways'"), std::string::npos);
  EXPECT_NE(refusal_of("attention forward bf16 b1").find("the end of the key"), std::string::npos);
  EXPECT_NE(refusal_of("attention forward bf16 b1 tp1 gated").find("'gated'"), std::string::npos);
  EXPECT_NE(refusal_of("attention forward bf16 b99999999999 tp1"), "accepted");
  EXPECT_NE(refusal_of("all_reduce 12 g2 nodes1 per2"), "accepted");
  EXPECT_NE(refusal_of("all_reduce 12B g2 nodes1 per2 in3GBps/us"), "accepted");
  EXPECT_NE(refusal_of("all_reduce 12B g2 nodes1 per2 innanGBps/1us"), "accepted");
  EXPECT_NE(refusal_of(""), "accepted");
  EXPECT_EQ(refusal_of("all_reduce 12B g2 nodes1 per2 in3GBps/1us"), "accepted");
}

TEST(Decimal, MovesThePointWithoutRounding) {
  EXPECT_EQ(decimal(3e11, -9), "300");
  EXPECT_EQ(decimal(2.5e-6, 6), "2.5");
  EXPECT_EQ(decimal(0.0), "0");
  EXPECT_EQ(decimal(0.07, 2), "7");  // 0.07 * 100 is 7.000000000000001
  EXPECT_EQ(parse_decimal("7", 2), 0.07);
  EXPECT_EQ(parse_decimal("1e3"), 1000.0);
  for (const char* bad : {"", "-", ".", "e5", "1e", "nan", "inf", "1x", "0x10", "1e999", " 1"})
    EXPECT_FALSE(parse_decimal(bad)) << bad;
}

RC_GTEST_PROP(Decimal, RoundTripsEveryFiniteDouble, (double x)) {
  RC_PRE(std::isfinite(x));
  for (const int shift : {0, 2, -9, 6}) RC_ASSERT(parse_decimal(decimal(x, shift), shift) == x);
}

}  // namespace
}  // namespace sextant
