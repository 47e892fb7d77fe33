// A device that does at once what it is told, for the protocol of ranks that share a GPU.
#pragma once

#include <cstring>
#include <new>
#include <span>

#include "runtime/communicators/ordered_sum.hpp"
#include "runtime/communicators/shared_device_communicator.hpp"

namespace sextant::testing {

struct DeviceAtOnce {
  using Mark = int;
  static bool on_host(NativeStream) { return false; }
  static Mark make_mark() { return 0; }
  static void destroy_mark(Mark) {}
  static void record(Mark, NativeStream) {}
  static void wait(NativeStream, Mark) {}
  static void copy(NativeStream, void* to, const void* from, std::int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  static void reduce(NativeStream, std::span<const void* const> parts, void* out, std::int64_t count,
                     Dtype dtype, bool maximum) {
    reduce_in_order(parts, out, count, dtype, maximum ? Reduction::max : Reduction::sum);
  }
  static void* allocate(std::int64_t bytes) { return ::operator new(static_cast<std::size_t>(bytes)); }
  static void release(void* data) { ::operator delete(data); }
};

}  // namespace sextant::testing
