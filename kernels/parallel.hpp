// A loop over pieces of a range, on all cores or on those of the caller's task arena. Debian's TBB is not built for
// ThreadSanitizer, which then sees neither how a piece is handed to another thread nor how its end is known: with that
// sanitizer both are told here, so that what it reports is ours.
#pragma once

#include <cstdint>

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>

#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#endif

namespace sextant {

// Calls f(begin, end) for pieces of [0, n) of about `grain`, in any order.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, const F& f) {
#ifdef __SANITIZE_THREAD__
  char handed_out = 0, handed_back = 0;
  __tsan_release(&handed_out);
#endif
  tbb::parallel_for(tbb::blocked_range<std::int64_t>(0, n, grain), [&](const auto& piece) {
#ifdef __SANITIZE_THREAD__
    __tsan_acquire(&handed_out);
#endif
    f(piece.begin(), piece.end());
#ifdef __SANITIZE_THREAD__
    __tsan_release(&handed_back);
#endif
  });
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(&handed_back);
#endif
}

}  // namespace sextant
