// A clock whose time of day jumps, as a time service or a person sets it; steady clocks stay as they are. Part of the library of
// faults.cpp.
//
// Environment: FAULTS_CLOCK_S, seconds by which it jumps, back where negative, FAULTS_CLOCK_AFTER_S after the first look at it.
#include <cstdlib>
#include <ctime>

#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

double number_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::atof(value) : 0;
}

double steady() {
  timespec t{};
  ::syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void jump(timespec& now) {
  static const double by = number_of("FAULTS_CLOCK_S"), after = number_of("FAULTS_CLOCK_AFTER_S"),
                      first = steady();
  if (by != 0 && steady() - first >= after) now.tv_sec += static_cast<time_t>(by);
}

}  // namespace

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): the C library's own names
int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) jump(*now);
  return result;
}
int gettimeofday(timeval* now, void*) noexcept {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  now->tv_sec = t.tv_sec;
  now->tv_usec = t.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* to) noexcept {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  if (to) *to = t.tv_sec;
  return t.tv_sec;
}
// NOLINTEND(readability-identifier-naming)
}
