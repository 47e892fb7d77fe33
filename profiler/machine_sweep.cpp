#include "profiler/machine_sweep.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include <fmt/format.h>

#include "core/timeline/measurement_name.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "profiler/sample_summary.hpp"
#include "profiler/stream_bench.hpp"

namespace sextant {
namespace {

constexpr int kLaunches = 256;  // of the smallest kernel, one behind another

struct Amount {
  double bytes = 0, flops = 0;  // of one call
};

class Sweep {
 public:
  Sweep(Device& device, const KernelTable& kernels, Communicator& world, const SweepOptions& options)
      : device_(device), kernels_(kernels), world_(world), options_(options), bench_(device) {}

  std::vector<MachineMeasurement> run() {
    part("copies", [&] { copies(); });
    part("GEMMs", [&] { gemms(); });
    part("launches", [&] { launches(); });
    part("GEMMs overlapped with copies", [&] { gemm_overlapping_copies(); });
    nodes_ = nodes();
    for (int ranks = 2; ranks < world_.size(); ranks *= 2) collectives(ranks);
    if (world_.size() > 1) {
      collectives(world_.size());
      gemm_overlapping_collective();
    }
    return std::move(out_);
  }

 private:
  // On rank 0 alone.
  void part(const char* name, const std::function<void()>& measure) {
    if (world_.rank() == 0) {
      if (options_.before_part) options_.before_part(name);
      measure();
    }
    world_.barrier({});
  }

  void add(const Measured& what, const Measured& concurrent_with, const std::vector<double>& seconds,
           const Amount& amount) {
    if (seconds.empty()) return;  // the two were never under way together
    const SampleSummary s = summarize(seconds);
    MachineMeasurement m;
    m.what = measurement_name(what);
    m.concurrent_with = measurement_name(concurrent_with);
    m.median_us = 1e6 * s.median;
    m.spread_us = 1e6 * s.spread;
    m.samples = s.samples;
    m.outliers = s.outliers;
    if (s.median > 0) {
      m.rate_GBps = amount.bytes / s.median * 1e-9;
      m.rate_TFLOPS = amount.flops / s.median * 1e-12;
    }
    out_.push_back(std::move(m));
  }

  // Normal numbers, a million different ones on and on: products of zeros draw less power and run faster.
  TensorView matrix(Dtype dtype, std::int64_t rows, std::int64_t cols) {
    const TensorView x(
        memory_.emplace_back(device_, Space::device, Bytes(rows * cols * size_bytes(dtype))).data(), dtype,
        rows, cols);
    const std::int64_t block = std::min<std::int64_t>(x.elements(), 1 << 20);
    std::vector<float> values(static_cast<std::size_t>(block));
    std::normal_distribution<float> normal(0, 1);
    for (float& v : values) v = normal(random_);
    std::vector<std::byte> bytes(static_cast<std::size_t>(block * size_bytes(dtype)));
    cpu_kernels().cast(
        {.source = {values.data(), Dtype::fp32, 1, block}, .destination = {bytes.data(), dtype, 1, block}});
    auto* to = static_cast<std::byte*>(x.data);
    for (std::int64_t at = 0; at < x.bytes(); at += std::ssize(bytes))
      device_.transfer(to + at, bytes.data(),
                       Bytes(std::min<std::int64_t>(x.bytes() - at, std::ssize(bytes))));
    return x;
  }

  StreamCall copy(std::byte* to, Space to_space, const std::byte* from, Space from_space) {
    return [this, to, to_space, from, from_space](StreamId stream) {
      device_.copy(stream, to, to_space, from, from_space, Bytes(options_.copy_bytes));
    };
  }

  // Two halves of either memory, so that two copies at once share nothing but the way.
  struct CopyPlaces {
    Allocation device, host;
    std::byte *on_device[2], *on_host[2];
  };
  CopyPlaces copy_places() {
    const std::int64_t n = options_.copy_bytes;
    CopyPlaces p{Allocation(device_, Space::device, Bytes(2 * n)),
                 Allocation(device_, Space::host, Bytes(2 * n)),
                 {},
                 {}};
    for (int i = 0; i < 2; ++i) {
      p.on_device[i] = p.device.data() + i * n;
      p.on_host[i] = p.host.data() + i * n;
    }
    for (int i = 0; i < 2; ++i) {  // pages are made when they are first touched
      std::fill_n(p.on_host[i], n, std::byte{1});
      device_.transfer(p.on_device[i], p.on_host[i], Bytes(n));
    }
    return p;
  }

  CopyWork copied(CopyDirection direction) const { return {Bytes(options_.copy_bytes), direction}; }

  void copies() {
    const CopyPlaces p = copy_places();
    const auto bytes = static_cast<double>(options_.copy_bytes);
    const int n = options_.repetitions;
    add(CopyWithin{Bytes(options_.copy_bytes)}, {},
        bench_.alone(copy(p.on_device[1], Space::device, p.on_device[0], Space::device), n), {2 * bytes});
    const StreamCall in = copy(p.on_device[0], Space::device, p.on_host[0], Space::host),
                     out = copy(p.on_host[1], Space::host, p.on_device[1], Space::device);
    const auto in_alone = bench_.alone(in, n), out_alone = bench_.alone(out, n);
    const Measured in_name = copied(CopyDirection::host_to_device),
                   out_name = copied(CopyDirection::device_to_host);
    add(in_name, {}, in_alone, {bytes});
    add(out_name, {}, out_alone, {bytes});
    const auto both = bench_.concurrent(
        in, out, StreamBench::counts(summarize(in_alone).median, summarize(out_alone).median), 3);
    add(in_name, out_name, both.first, {bytes});
    add(out_name, in_name, both.second, {bytes});
  }

  struct Gemm {
    SquareGemm of;
    StreamCall call;
    Amount amount;
  };
  Gemm gemm(Dtype dtype, std::int64_t extent) {
    const TensorView a = matrix(dtype, extent, extent), b = matrix(dtype, extent, extent),
                     c = matrix(dtype, extent, extent);
    const GemmArgs args{.a = a, .b = b, .c = c, .transpose_b = true, .threads = options_.threads};
    return {
        {dtype, extent},
        [this, args](StreamId stream) {
          device_.launch(stream, [this, args](NativeStream s) {
            GemmArgs here = args;
            here.stream = s;
            kernels_.gemm(here);
          });
        },
        {0, 2.0 * static_cast<double>(extent) * static_cast<double>(extent) * static_cast<double>(extent)}};
  }

  void gemms() {
    for (const Dtype dtype : options_.formats)
      for (const std::int64_t extent : options_.extents) {
        const Gemm p = gemm(dtype, extent);
        add(p.of, {}, bench_.alone(p.call, options_.repetitions), p.amount);
        memory_.clear();
      }
  }

  // The smallest kernel, many behind one another: what the device takes for each, and what the host takes to enqueue it.
  void launches() {
    const TensorView x = matrix(Dtype::fp32, 1, 16);
    const StreamCall one = [&](StreamId stream) {
      device_.launch(stream,
                     [this, x](NativeStream s) { kernels_.scale({.x = x, .factor = 1, .stream = s}); });
    };
    std::vector<double> by_host;
    const StreamCall many = [&](StreamId stream) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kLaunches; ++i) one(stream);
      by_host.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    };
    std::vector<double> by_device = bench_.alone(many, options_.repetitions);
    by_host.erase(by_host.begin(), by_host.begin() + 2);  // the rehearsed one and the one that is dropped
    for (double& s : by_device) s /= kLaunches;
    for (double& s : by_host) s /= kLaunches;
    add(SmallestKernel{}, {}, by_device, {});
    add(SmallestKernel{.by_host = true}, {}, by_host, {});
    memory_.clear();
  }

  void gemm_overlapping_copies() {
    const CopyPlaces places = copy_places();
    const Gemm p = gemm(options_.formats.back(), options_.extents.back());
    const double own = summarize(bench_.alone(p.call, 3)).median;
    for (const CopyDirection direction : {CopyDirection::host_to_device, CopyDirection::device_to_host}) {
      const bool in = direction == CopyDirection::host_to_device;
      const StreamCall moves = in ? copy(places.on_device[0], Space::device, places.on_host[0], Space::host)
                                  : copy(places.on_host[1], Space::host, places.on_device[1], Space::device);
      const double other = summarize(bench_.alone(moves, 3)).median;
      const auto both = bench_.concurrent(p.call, moves, StreamBench::counts(own, other), 3);
      add(p.of, copied(direction), both.first, p.amount);
      add(copied(direction), p.of, both.second, {static_cast<double>(options_.copy_bytes)});
    }
    memory_.clear();
  }

  StreamCall collective(CollectiveKind kind, Communicator& group, std::int64_t bytes, std::byte* from,
                        std::byte* to) {
    return [this, kind, &group, bytes, from, to](StreamId stream) {
      device_.launch(stream, [kind, &group, bytes, from, to](NativeStream s) {
        const auto counts = even_split(bytes / 4, group.size());
        if (kind == CollectiveKind::all_reduce)
          return group.all_reduce(from, to, bytes / 4, Dtype::fp32, Reduction::sum, s);
        if (kind == CollectiveKind::reduce_scatter)
          return group.reduce_scatter(from, to, counts, Dtype::fp32, Reduction::sum, s);
        std::vector<std::int64_t> slices;
        for (const std::int64_t n : counts) slices.push_back(4 * n);
        group.all_gather(from, to, slices, s);
      });
    };
  }
  // Of a ring, as nccl-tests' bus bandwidth has it.
  static double sent(CollectiveKind kind, std::int64_t bytes, int ranks) {
    return static_cast<double>(bytes) * (kind == CollectiveKind::all_reduce ? 2.0 : 1.0) * (ranks - 1) /
           ranks;
  }

  // By rank: the nodes that hold the ranks up to it.
  std::vector<int> nodes() {
    constexpr std::size_t kMostOfName = 64;
    std::string own = options_.node, all(kMostOfName * static_cast<std::size_t>(world_.size()), ' ');
    own.resize(kMostOfName, ' ');
    const std::vector<std::int64_t> each(static_cast<std::size_t>(world_.size()), kMostOfName);
    world_.all_gather(own.data(), all.data(), each, {});
    std::vector<int> out;
    std::set<std::string> seen;
    for (std::size_t at = 0; at < all.size(); at += kMostOfName) {
      seen.insert(all.substr(at, kMostOfName));
      out.push_back(static_cast<int>(seen.size()));
    }
    return out;
  }
  MeasuredCollective collective_of(CollectiveKind kind, std::int64_t bytes, int ranks) const {
    return {kind, Bytes(bytes), ranks, nodes_[static_cast<std::size_t>(ranks - 1)], options_.one_device};
  }

  std::unique_ptr<Communicator> first_ranks(int ranks) {
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    return world_.group(members);
  }
  // The slowest rank's time of each repetition; ranks that took no part give none.
  void slowest(std::vector<double>& seconds, std::size_t n) {
    seconds.resize(n, 0.0);
    world_.all_reduce(seconds.data(), seconds.data(), static_cast<std::int64_t>(n), Dtype::fp64,
                      Reduction::max, {});
  }

  void collectives(int ranks) {
    if (world_.rank() == 0 && options_.before_part)
      options_.before_part(fmt::format("collectives of {} ranks", ranks));
    const bool member = world_.rank() < ranks;
    const std::unique_ptr<Communicator> group = member ? first_ranks(ranks) : nullptr;
    const std::int64_t most = *std::ranges::max_element(options_.collective_bytes);
    if (member) {
      matrix(Dtype::fp32, 1, most / 4);
      matrix(Dtype::fp32, 1, most / 4);
    }
    for (const CollectiveKind kind :
         {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter})
      for (const std::int64_t bytes : options_.collective_bytes) {
        std::vector<double> seconds;
        if (member)
          seconds = bench_.alone(collective(kind, *group, bytes, memory_[0].data(), memory_[1].data()),
                                 options_.repetitions, [&] { meet(*group); });
        slowest(seconds, static_cast<std::size_t>(options_.repetitions));
        add(collective_of(kind, bytes, ranks), {}, seconds, {sent(kind, bytes, ranks)});
      }
    memory_.clear();
    world_.barrier({});
  }
  // On the host and then on the streams, so that all begin together.
  void meet(Communicator& group) {
    group.barrier({});
    device_.launch(bench_.stream(), [&group](NativeStream s) { group.barrier(s); });
  }

  // All ranks at once: they may share a device, so the product is measured alone in the same way. The smallest product, about
  // that of a layer: an exchange waits for one that fills the device, and a long one would count as interference.
  void gemm_overlapping_collective() {
    if (world_.rank() == 0 && options_.before_part) options_.before_part("GEMMs concurrent with collectives");
    const int ranks = world_.size();
    const std::int64_t bytes = *std::ranges::max_element(options_.collective_bytes);
    const auto group = first_ranks(ranks), meeting = first_ranks(ranks);  // one for each stream
    const Gemm p = gemm(options_.formats.back(), options_.extents.front());
    const TensorView from = matrix(Dtype::fp32, 1, bytes / 4), to = matrix(Dtype::fp32, 1, bytes / 4);
    const StreamCall all_reduce =
        collective(CollectiveKind::all_reduce, *group, bytes, static_cast<std::byte*>(from.data),
                   static_cast<std::byte*>(to.data));
    const auto begin = [&] { meet(*meeting); };
    std::vector<double> own = bench_.alone(p.call, options_.repetitions, begin),
                        other = bench_.alone(all_reduce, options_.repetitions, begin);
    slowest(own, own.size());  // all ranks make the same number of calls
    slowest(other, other.size());
    const auto counts = StreamBench::counts(summarize(own).median, summarize(other).median);
    const auto both = bench_.concurrent(p.call, all_reduce, counts, 3, begin);
    SquareGemm at_once = p.of;
    at_once.ranks = ranks;
    const MeasuredCollective sum = collective_of(CollectiveKind::all_reduce, bytes, ranks);
    add(at_once, {}, own, p.amount);
    add(at_once, sum, both.first, p.amount);
    add(sum, at_once, both.second, {sent(CollectiveKind::all_reduce, bytes, ranks)});
    memory_.clear();
    world_.barrier({});
  }

  Device& device_;
  const KernelTable& kernels_;
  Communicator& world_;
  const SweepOptions& options_;
  StreamBench bench_;
  std::vector<Allocation> memory_;
  std::mt19937 random_{1};
  std::vector<int> nodes_;
  std::vector<MachineMeasurement> out_;
};

}  // namespace

SweepOptions sweep_of_gpu() {
  SweepOptions o;
  o.copy_bytes = std::int64_t{512} << 20;
  o.formats = {Dtype::bf16};
  o.extents = {4096, 8192, 16384};
  o.collective_bytes = {1 << 16, 1 << 20, 1 << 24, 1 << 28};
  return o;
}

SweepOptions quick_sweep() {
  SweepOptions o;
  o.repetitions = 3;
  o.copy_bytes = 1 << 20;
  o.formats = {Dtype::bf16};
  o.extents = {64, 128};
  o.collective_bytes = {1 << 12, 1 << 16};
  return o;
}

std::vector<MachineMeasurement> sweep_machine(Device& device, const KernelTable& kernels, Communicator& world,
                                              const SweepOptions& options) {
  return Sweep(device, kernels, world, options).run();
}

}  // namespace sextant
