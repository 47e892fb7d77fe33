// What a CUDA compiler gives a kernel without an include, for a host's compiler. Read before a .cu file that
// host_syntax.py has rewritten.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <source_location>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "tests/cuda/emulation/block.hpp"
#include "tests/cuda/emulation/gpu.hpp"

#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (::emulation::self().thread)
#define blockIdx (::emulation::self().block)
#define blockDim (::emulation::self().launch->block)
#define gridDim (::emulation::self().launch->grid)

using std::isinf;
using std::isnan;

using Place = std::source_location;  // of a barrier, which all threads must have in common

inline void __syncthreads(Place at = Place::current()) { ::emulation::barrier(at.line()); }
inline int __syncthreads_or(int x, Place at = Place::current()) {
  return ::emulation::barrier(at.line(), x != 0);
}

namespace emulation {
template <class T>
T shuffle(unsigned mask, T value, unsigned from, unsigned line) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = warp(mask, {WarpCall::shuffle, line, bits, from});
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
}  // namespace emulation

// One array a block, wherever it is declared.
#define EMULATED_SHARED(name, ...)       \
  static const char name##_declared = 0; \
  auto& name = ::emulation::shared_array<__VA_ARGS__>(&name##_declared);

template <class T>
T __shfl_sync(unsigned mask, T value, int from, Place at = Place::current()) {
  return ::emulation::shuffle(mask, value, static_cast<unsigned>(from) % 32, at.line());
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int offset, Place at = Place::current()) {
  return ::emulation::shuffle(mask, value, ::emulation::self().lane ^ static_cast<unsigned>(offset),
                              at.line());
}
inline unsigned __ballot_sync(unsigned mask, int x, Place at = Place::current()) {
  return static_cast<unsigned>(
      ::emulation::warp(mask, {::emulation::WarpCall::ballot, at.line(), x != 0, 0}));
}
inline std::int32_t __reduce_max_sync(unsigned mask, std::int32_t x, Place at = Place::current()) {
  const auto bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
  return static_cast<std::int32_t>(
      ::emulation::warp(mask, {::emulation::WarpCall::maximum, at.line(), bits, 0}));
}
inline std::int32_t __reduce_min_sync(unsigned mask, std::int32_t x, Place at = Place::current()) {
  const auto bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
  return static_cast<std::int32_t>(
      ::emulation::warp(mask, {::emulation::WarpCall::minimum, at.line(), bits, 0}));
}
inline int atomicMax(int* at, int x) {
  std::atomic_ref<int> shared(*at);
  int before = shared.load(std::memory_order_relaxed);
  while (before < x && !shared.compare_exchange_weak(before, x, std::memory_order_relaxed)) {
  }
  return before;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

template <class F>
cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute what, int value) {
  return ::emulation::set_kernel_attribute(reinterpret_cast<const void*>(kernel), what, value);
}

namespace emulation {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(dynamic_shared_bytes());
}
template <class Array>
Array& shared_array(const void* declaration) {
  return *static_cast<Array*>(shared_bytes(declaration, sizeof(Array)));
}

template <class... P>
auto launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared = 0,
            cudaStream_t stream = nullptr) {
  return [=](std::type_identity_t<P>... arguments) {
    enqueue_kernel(stream, {grid, block, shared, reinterpret_cast<const void*>(kernel)},
                   [=] { kernel(arguments...); });
  };
}

}  // namespace emulation
