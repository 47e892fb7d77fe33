// What the sanitizers are told of fibers, and the memory that a block shares, which they watch: AddressSanitizer finds
// what lies outside of it, ThreadSanitizer two threads that nothing but luck keeps apart. Of the emulation itself they
// watch nothing: its part is compiled without them and told of them by name.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

#if defined(SEXTANT_EMULATION_ADDRESSES)
#include <sanitizer/common_interface_defs.h>
#elif defined(SEXTANT_EMULATION_RACES)
#include <sanitizer/tsan_interface.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace emulation {

struct FiberIdentity {
  void *inside = nullptr, *outside = nullptr;  // ThreadSanitizer's; AddressSanitizer's stack outside
  std::size_t outside_bytes = 0;
};

#if defined(SEXTANT_EMULATION_ADDRESSES)

inline void switch_in(FiberIdentity&, const void* bottom, std::size_t bytes) {
  __sanitizer_start_switch_fiber(nullptr, bottom, bytes);
}
inline void switched_out(FiberIdentity&) { __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr); }
inline void switch_out(FiberIdentity& f) {
  __sanitizer_start_switch_fiber(nullptr, f.outside, f.outside_bytes);
}
inline void entered(FiberIdentity& f) {
  const void* bottom = nullptr;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &f.outside_bytes);
  f.outside = const_cast<void*>(bottom);
}
inline void happens_before(void*) {}
inline void happens_after(void*) {}

#elif defined(SEXTANT_EMULATION_RACES)

inline void switch_in(FiberIdentity& f, const void*, std::size_t) {
  if (!f.inside) f.inside = __tsan_create_fiber(0);
  f.outside = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(f.inside, __tsan_switch_to_fiber_no_sync);
}
inline void switched_out(FiberIdentity&) {}
inline void switch_out(FiberIdentity& f) {
  __tsan_switch_to_fiber(f.outside, __tsan_switch_to_fiber_no_sync);
}
inline void entered(FiberIdentity&) {}
inline void happens_before(void* what) { __tsan_release(what); }
inline void happens_after(void* what) { __tsan_acquire(what); }

#else

inline void switch_in(FiberIdentity&, const void*, std::size_t) {}
inline void switched_out(FiberIdentity&) {}
inline void switch_out(FiberIdentity&) {}
inline void entered(FiberIdentity&) {}
inline void happens_before(void*) {}
inline void happens_after(void*) {}

#endif

#if defined(SEXTANT_EMULATION_RACES)
// Memory without a history: ThreadSanitizer sees it unmapped, which it forgets by the page of its own, but not mapped,
// which would count as a write.
inline std::size_t mapped_bytes(std::size_t bytes) { return (bytes / 65536 + 1) * 65536; }
inline void* take_shared(std::size_t bytes) {
  auto* data = reinterpret_cast<void*>(syscall(SYS_mmap, nullptr, mapped_bytes(bytes), PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (std::size_t i = 0; i < bytes; ++i) static_cast<volatile unsigned char*>(data)[i] = 0xff;
  return data;
}
inline void give_shared(void* data, std::size_t bytes) { munmap(data, mapped_bytes(bytes)); }
#else
inline void* take_shared(std::size_t bytes) {
  return std::memset(std::malloc(bytes ? bytes : 1), 0xff, bytes);
}
inline void give_shared(void* data, std::size_t) { std::free(data); }
#endif

}  // namespace emulation
