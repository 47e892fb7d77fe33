// The main function of test programs. A run without failures in which something was skipped ends with 77, which ctest shows
// as skipped, whether it was of one case or of a whole suite; a failure beside skipped cases stays one.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  return failed == 0 && ::testing::UnitTest::GetInstance()->skipped_test_count() > 0 ? 77 : failed;
}
