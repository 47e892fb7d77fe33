// A GPU to time calls on, with operands for them.
#pragma once

#include <algorithm>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/cpu/cpu_kernels.hpp"
#include "runtime/devices/make_device.hpp"

namespace sextant {

using Json = nlohmann::ordered_json;

class Bench {
 public:
  // `smaller`: 1, or by how much operands are, for a rehearsal whose figures mean nothing.
  explicit Bench(std::int64_t smaller)
      : smaller_(smaller), device_(make_cuda_device({})), stream_(device_->create_stream("bench")) {}
  std::int64_t extent(std::int64_t full) const { return std::max<std::int64_t>(full / smaller_, 1); }

  // A matrix of normal numbers: zeros would run faster than real data does.
  TensorView matrix(Dtype dtype, std::int64_t rows, std::int64_t cols, double deviation = 1.0) {
    const TensorView view(
        memory_.emplace_back(*device_, Space::device, Bytes(rows * cols * size_bytes(dtype))).data(), dtype,
        rows, cols);
    // A million different values, copied on and on.
    const std::int64_t block = std::min<std::int64_t>(view.elements(), 1 << 20);
    std::vector<float> values(static_cast<std::size_t>(block));
    std::normal_distribution<float> normal(0, static_cast<float>(deviation));
    for (float& v : values) v = normal(random_);
    std::vector<std::byte> bytes(static_cast<std::size_t>(block * size_bytes(dtype)));
    cpu_kernels().cast(
        {.source = {values.data(), Dtype::fp32, 1, block}, .destination = {bytes.data(), dtype, 1, block}});
    auto* to = static_cast<std::byte*>(view.data);
    for (std::int64_t at = 0; at < view.bytes(); at += static_cast<std::int64_t>(bytes.size()))
      device_->transfer(to + at, bytes.data(),
                        Bytes(std::min<std::int64_t>(view.bytes() - at, std::ssize(bytes))));
    return view;
  }
  std::span<const std::int32_t> list(const std::vector<std::int32_t>& values) {
    auto& memory =
        memory_.emplace_back(*device_, Space::device, Bytes(static_cast<std::int64_t>(4 * values.size())));
    device_->transfer(memory.data(), values.data(), Bytes(static_cast<std::int64_t>(4 * values.size())));
    return {reinterpret_cast<const std::int32_t*>(memory.data()), values.size()};
  }
  void clear() { memory_.clear(); }

  // Median seconds of one call. The first is rehearsed: libraries choose. What follows is as much as brings the clocks up. Calls
  // are timed many at a time, since the first one's way to the GPU counts too; where operands must be made anew before each
  // (`prepare`), that hides the way.
  double seconds(const std::function<void(NativeStream)>& call,
                 const std::function<void(NativeStream)>& prepare = {}) {
    device_->rehearse(true);
    if (prepare) device_->launch(stream_, prepare);
    device_->launch(stream_, call);
    device_->rehearse(false);
    constexpr double kWarmUp_s = 0.05, kSample_s = 0.002;
    const double once = std::max(sample(call, prepare, 1), 1e-6);
    const int most = prepare ? 1 : 20;
    const int calls = std::clamp(static_cast<int>(kSample_s / once), 1, most);
    for (double spent = 0; spent < kWarmUp_s; spent += calls * once) sample(call, prepare, calls);
    std::vector<double> times;
    for (int i = 0; i < 15; ++i) times.push_back(sample(call, prepare, calls));
    std::ranges::sort(times);
    return times[times.size() / 2];
  }
  Device& device() { return *device_; }
  StreamId stream() const { return stream_; }

 private:
  double sample(const std::function<void(NativeStream)>& call,
                const std::function<void(NativeStream)>& prepare, int calls) {
    if (prepare) device_->launch(stream_, prepare);
    const Event begin = device_->record(stream_);
    for (int i = 0; i < calls; ++i) device_->launch(stream_, call);
    const Event end = device_->record(stream_);
    device_->synchronize(end);
    return (*device_->reached(end) - *device_->reached(begin)).v / calls;
  }

  std::int64_t smaller_;
  std::unique_ptr<Device> device_;
  StreamId stream_;
  std::vector<Allocation> memory_;
  std::mt19937 random_{1};
};

// Of a row each; cuda_bandwidth.cpp.
Json memory_bound(Bench&, double copy_bandwidth);
// cuda_fp8.cpp: products in fp8, their casts, and the same in bf16.
Json fp8_gemms(Bench&);
Json latency_bound(Bench&);

}  // namespace sextant
