#include "planner/explain/unused_fields.hpp"

#include <gmock/gmock.h>

#include "tests/support/specs.hpp"

namespace sextant {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Case {
  const char* set;    // with the field
  const char* plain;  // without
  const char* field;  // that is named; empty: it acts
};

// Named just when the graph is the same without it.
TEST(WithoutEffect, IsWhatLeavesTheGraphAsItWas) {
  for (const auto& [set, plain, field] : {
           Case{"dp4.z1.mbs2.b2K", "dp4.z1.mbs2", ""},
           Case{"dp4.z3.mbs2.b2K", "dp4.z3.mbs2", "bucket_elements"},
           Case{"dp4.z1.mbs2.b2K.nogr", "dp4.z1.mbs2.nogr", "bucket_elements"},
           Case{"dp4.z1.mbs2.lb2", "dp4.z1.mbs2", ""},
           Case{"dp4.z3.mbs2.lb2", "dp4.z3.mbs2", "last_bucket_split"},
           Case{"dp4.z1.mbs2.b1.lb2", "dp4.z1.mbs2.b1", "last_bucket_split"},
           Case{"mbs2.ao4.hz2", "mbs2.ao4", ""},
           Case{"mbs2.ao4.hz0", "mbs2.ao4", ""},
           Case{"mbs2.po.hz3", "mbs2.po", ""},
           Case{"mbs2.po.hz0", "mbs2.po", ""},
           Case{"dp2.z3.mbs2.po.hz3", "dp2.z3.mbs2.po", ""},
           Case{"mbs2.hz3", "mbs2", "offload_horizon"},
       }) {
    ExecutionGraph with = lower_tiny(set);
    const ExecutionGraph without = lower_tiny(plain);
    const auto named = unused_fields(with.plan, with.model, StackSpec());
    with.plan = without.plan;
    const bool same = graph_hash(with) == graph_hash(without);
    EXPECT_EQ(same, *field != '\0') << set;
    if (*field == '\0')
      EXPECT_THAT(named, IsEmpty()) << set;
    else
      EXPECT_THAT(named, ElementsAre(StartsWith(field))) << set;
    EXPECT_THAT(unused_fields(without.plan, without.model, StackSpec()), IsEmpty()) << plain;
  }
}

}  // namespace
}  // namespace sextant
