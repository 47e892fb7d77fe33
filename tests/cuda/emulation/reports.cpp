// What went wrong on the emulated GPU is a failure of the test under way, and what a sanitizer finds ends the program.
#include <gtest/gtest.h>

#include "tests/cuda/emulation/gpu.hpp"

extern "C" {
const char* __asan_default_options() {
  return "detect_leaks=0";
}  // fibers that stand amid a kernel are left behind
const char* __tsan_default_options() { return "halt_on_error=1"; }
}

namespace {

class Reports : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo&) override {
    for (const std::string& report : emulation::take_reports()) ADD_FAILURE() << report;
  }
};

const bool added = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Reports);
  return true;
}();

}  // namespace
