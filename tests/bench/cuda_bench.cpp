// What the GPU's kernels reach: copies, matrix products, attention, and the memory-bound kernels as a share of the
// copy bandwidth. Medians of repeats between device events, after warming up; operands of several times the
// second cache. Prints one JSON object. Without a GPU it says so and ends well.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <random>

#include <nlohmann/json.hpp>

#include "core/block_tensors.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/positions.hpp"
#include "runtime/backends.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

class Bench {
 public:
  Bench() : device_(make_cuda_device({})), stream_(device_->create_stream("bench")) {}

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

  std::unique_ptr<Device> device_;
  StreamId stream_;
  std::vector<Allocation> memory_;
  std::mt19937 random_{1};
};

Json copies(Bench& b, double& copy_bandwidth) {
  Json out;
  constexpr std::int64_t kBytes = std::int64_t{2} << 30;
  const TensorView from = b.matrix(Dtype::bf16, 1, kBytes / 2), to = b.matrix(Dtype::bf16, 1, kBytes / 2);
  const double vendor = b.seconds([&](NativeStream) {
    b.device().copy(b.stream(), static_cast<std::byte*>(to.data), Space::device,
                    static_cast<std::byte*>(from.data), Space::device, Bytes(kBytes));
  });
  copy_bandwidth = 2.0 * kBytes / vendor;
  out["device_to_device_GBps"] = copy_bandwidth / 1e9;
  const Allocation host(b.device(), Space::host, Bytes(kBytes / 4));
  auto* device = static_cast<std::byte*>(to.data);
  const double up = b.seconds([&](NativeStream) {
    b.device().copy(b.stream(), device, Space::device, host.data(), Space::host, Bytes(kBytes / 4));
  });
  const double down = b.seconds([&](NativeStream) {
    b.device().copy(b.stream(), host.data(), Space::host, device, Space::device, Bytes(kBytes / 4));
  });
  out["host_to_device_GBps"] = kBytes / 4 / up / 1e9;
  out["device_to_host_GBps"] = kBytes / 4 / down / 1e9;
  b.clear();
  return out;
}

Json memory_bound(Bench& b, double copy_bandwidth) {
  const KernelTable& k = *cuda_kernels();
  Json out = Json::array();
  const auto add = [&](const char* name, double bytes, const std::function<void(NativeStream)>& call,
                       const std::function<void(NativeStream)>& prepare = {}) {
    const double s = b.seconds(call, prepare);
    out.push_back({{"kernel", name},
                   {"time_us", 1e6 * s},
                   {"bandwidth_GBps", bytes / s / 1e9},
                   {"share_of_copy", bytes / s / copy_bandwidth}});
    std::cerr << name << ": " << 100 * bytes / s / copy_bandwidth << " % of the copy\n";
  };
  const std::int64_t rows = 32768, h = 4096, f = 11008;
  {
    const TensorView x = b.matrix(Dtype::bf16, rows, h), y = b.matrix(Dtype::bf16, rows, h),
                     z = b.matrix(Dtype::bf16, rows, h), kept = b.matrix(Dtype::bf16, rows, h);
    const TensorView w = b.matrix(Dtype::bf16, 1, h), r = b.matrix(Dtype::fp32, 1, rows),
                     dw = b.matrix(Dtype::fp32, 1, h);
    const double n = static_cast<double>(rows * h);
    add("add", 6 * n, [&](NativeStream s) { k.add({.a = x, .b = y, .out = z, .stream = s}); });
    add("cast bf16 to bf16", 4 * n,
        [&](NativeStream s) { k.cast({.source = x, .destination = z, .stream = s}); });
    add("rmsnorm forward", 4 * n, [&](NativeStream s) {
      k.rmsnorm_forward({.x = x, .weight = w, .y = y, .inverse_rms = r, .stream = s});
    });
    add("residual and rmsnorm", 10 * n, [&](NativeStream s) {  // reads two, writes three
      k.rmsnorm_forward(
          {.x = x, .weight = w, .y = y, .inverse_rms = r, .branch = z, .kept = kept, .stream = s});
    });
    add("rmsnorm backward", 8 * n, [&](NativeStream s) {
      k.rmsnorm_backward(
          {.x = x, .inverse_rms = r, .weight = w, .dy = y, .bypass = z, .dx = z, .dweight = dw, .stream = s});
    });
    // The same memory as twice the rows of half the width.
    const auto half = [&](const TensorView& v) { return TensorView(v.data, v.dtype, 2 * rows, h / 2); };
    const TensorView r2 = b.matrix(Dtype::fp32, 1, 2 * rows);
    add("rmsnorm backward, 2048 wide", 8 * n, [&](NativeStream s) {
      k.rmsnorm_backward({.x = half(x),
                          .inverse_rms = r2,
                          .weight = w.column_range(0, h / 2),
                          .dy = half(y),
                          .bypass = half(z),
                          .dx = half(z),
                          .dweight = dw.column_range(0, h / 2),
                          .stream = s});
    });
    std::vector<std::int32_t> counting(4096);
    for (std::size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<std::int32_t>(i);
    const auto positions = b.list(counting);
    const TensorView cosine = b.matrix(Dtype::fp32, 4096, 64), sine = b.matrix(Dtype::fp32, 4096, 64);
    add("rope", 4 * n, [&](NativeStream s) {
      k.rope({.x = x,
              .cos = cosine,
              .sin = sine,
              .heads = 32,
              .head_dim = 128,
              .positions = positions,
              .stream = s});
    });
    std::vector<std::int32_t> ids(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((i * 7919) % 32000);
    const auto tokens = b.list(ids);
    const TensorView table = b.matrix(Dtype::bf16, 32000, h), dtable = b.matrix(Dtype::fp32, 32000, h);
    add("embedding forward", 4 * n,
        [&](NativeStream s) { k.embedding_forward({.ids = tokens, .table = table, .out = z, .stream = s}); });
    add("embedding backward", 2 * n + 8.0 * 32000 * h, [&](NativeStream s) {
      k.embedding_backward({.ids = tokens, .dout = x, .dtable = dtable, .stream = s});
    });
    b.clear();
  }
  {
    const TensorView gate = b.matrix(Dtype::bf16, rows, f), up = b.matrix(Dtype::bf16, rows, f),
                     out_view = b.matrix(Dtype::bf16, rows, f);
    const double n = static_cast<double>(rows * f);
    add("swiglu forward", 6 * n,
        [&](NativeStream s) { k.swiglu_forward({.gate = gate, .up = up, .out = out_view, .stream = s}); });
    const TensorView dgate = b.matrix(Dtype::bf16, rows, f), dup = b.matrix(Dtype::bf16, rows, f),
                     dout = b.matrix(Dtype::bf16, rows, f);
    // It overwrites what it reads, which soon would be zeros and infinities.
    add(
        "swiglu backward", 12 * n,
        [&](NativeStream s) { k.swiglu_backward({.gate = dgate, .up = dup, .dout = dout, .stream = s}); },
        [&](NativeStream s) {
          k.cast({.source = gate, .destination = dgate, .stream = s});
          k.cast({.source = up, .destination = dup, .stream = s});
          k.cast({.source = out_view, .destination = dout, .stream = s});
        });
    b.clear();
  }
  {
    const std::int64_t chunk = 4096, vocab = 32000;
    const TensorView logits = b.matrix(Dtype::fp32, chunk, vocab),
                     dlogits = b.matrix(Dtype::bf16, chunk, vocab), stats = b.matrix(Dtype::fp32, chunk, 3),
                     softmax = b.matrix(Dtype::fp32, chunk, 2);
    const auto targets = b.list(std::vector<std::int32_t>(static_cast<std::size_t>(chunk), 17));
    const double n = static_cast<double>(chunk * vocab);
    add("cross entropy statistics", 4 * n, [&](NativeStream s) {
      k.cross_entropy_stats(
          {.logits = logits, .targets = targets, .vocab = vocab, .stats = stats, .stream = s});
    });
    add("cross entropy gradient", 6 * n, [&](NativeStream s) {
      k.cross_entropy_gradient({.logits = logits,
                                .softmax = softmax,
                                .targets = targets,
                                .vocab = vocab,
                                .scale = 1e-4,
                                .dlogits = dlogits,
                                .stream = s});
    });
    b.clear();
  }
  {
    const std::int64_t n = std::int64_t{200} << 20;
    const TensorView p = b.matrix(Dtype::fp32, 1, n), m = b.matrix(Dtype::fp32, 1, n),
                     v = b.matrix(Dtype::fp32, 1, n), g = b.matrix(Dtype::fp32, 1, n),
                     w = b.matrix(Dtype::bf16, 1, n), sum = b.matrix(Dtype::fp64, 1, 1);
    const AdamwScalars scalars = scalars_of({.rate = 1e-4, .correction1 = 0.5, .correction2 = 0.5});
    const Allocation on_device(b.device(), Space::device, Bytes(sizeof scalars));
    b.device().transfer(on_device.data(), &scalars, Bytes(sizeof scalars));
    const ElementRange all{0, n};
    add("adamw", 30.0 * static_cast<double>(n), [&](NativeStream s) {
      k.adamw({.master = p,
               .moment1 = m,
               .moment2 = v,
               .gradient = g,
               .parameter = w,
               .decay = {&all, 1},
               .scalars = reinterpret_cast<const AdamwScalars*>(on_device.data()),
               .stream = s});
    });
    add("squared norm", 4.0 * static_cast<double>(n),
        [&](NativeStream s) { k.squared_norm({.x = g, .sum = sum.row<double>(), .stream = s}); });
    add("zero", 4.0 * static_cast<double>(n), [&](NativeStream s) { k.zero({.x = g, .stream = s}); });
    b.clear();
  }
  return out;
}

Json products(Bench& b) {
  Json out = Json::array();
  struct Extent {
    std::int64_t m, n, k;
  };
  for (const Extent e : {Extent{8192, 8192, 8192},
                         {8192, 2048, 2048},
                         {8192, 8192, 2048},
                         {8192, 4096, 4096},
                         {8192, 11008, 4096},
                         {8192, 4096, 11008},
                         {512, 32000, 4096}})
    for (const char* form : {"forward", "input", "weight"}) {
      const bool weight = form[0] == 'w', forward = form[0] == 'f';
      const TensorView x = b.matrix(Dtype::bf16, e.m, e.k), w = b.matrix(Dtype::bf16, e.n, e.k),
                       y = b.matrix(Dtype::bf16, e.m, e.n), dw = b.matrix(Dtype::fp32, e.n, e.k);
      const double s = b.seconds([&](NativeStream stream) {
        if (forward)
          cuda_kernels()->gemm({.a = x, .b = w, .c = y, .transpose_b = true, .stream = stream});
        else if (weight)
          cuda_kernels()->gemm(
              {.a = y, .b = x, .c = dw, .transpose_a = true, .accumulate = true, .stream = stream});
        else
          cuda_kernels()->gemm({.a = y, .b = w, .c = x, .stream = stream});
      });
      const double rate = 2.0 * static_cast<double>(e.m * e.n) * static_cast<double>(e.k) / s / 1e12;
      out.push_back(
          {{"m", e.m}, {"n", e.n}, {"k", e.k}, {"form", form}, {"time_us", 1e6 * s}, {"TFLOPs", rate}});
      std::cerr << "gemm " << e.m << " " << e.n << " " << e.k << " " << form << ": " << rate << " TFLOP/s\n";
      b.clear();
    }
  return out;
}

Json attention(Bench& b) {
  Json out = Json::array();
  struct Shape {
    int batch, heads, kv_heads, d, seq;
  };
  for (const bool tiles : {false, true})
    for (const Shape c :
         {Shape{4, 16, 16, 128, 2048}, {2, 32, 32, 128, 4096}, {2, 32, 8, 128, 4096}, {4, 32, 8, 64, 2048}}) {
      const std::int64_t rows = static_cast<std::int64_t>(c.batch) * c.seq,
                         q_cols = static_cast<std::int64_t>(c.heads) * c.d,
                         k_cols = static_cast<std::int64_t>(c.kv_heads) * c.d;
      const TensorView q = b.matrix(Dtype::bf16, rows, q_cols), kv = b.matrix(Dtype::bf16, rows, 2 * k_cols),
                       o = b.matrix(Dtype::bf16, rows, q_cols), dout = b.matrix(Dtype::bf16, rows, q_cols),
                       dq = b.matrix(Dtype::bf16, rows, q_cols),
                       dkv = b.matrix(Dtype::bf16, rows, 2 * k_cols),
                       lse = b.matrix(Dtype::fp32, rows, c.heads);
      const TensorView core =
          b.matrix(Dtype::fp32, 1, attention_core_elements(c.seq, c.heads, c.kv_heads, c.d));
      const auto positions = b.list(context_positions(c.seq, 1, 0));
      const KernelTable& k = *cuda_kernels(tiles);
      const AttentionShape shape{.batch = c.batch,
                                 .heads = c.heads,
                                 .kv_heads = c.kv_heads,
                                 .head_dim = c.d,
                                 .q_positions = positions,
                                 .k_positions = positions,
                                 .plain = true,
                                 .scale = 1 / std::sqrt(static_cast<double>(c.d))};
      const TensorView key = kv.column_range(0, k_cols), value = kv.column_range(k_cols, k_cols);
      const double forward = b.seconds([&](NativeStream s) {
        k.attention_forward(
            {.shape = shape, .q = q, .k = key, .v = value, .out = o, .lse = lse, .stream = s});
      });
      const double backward = b.seconds([&](NativeStream s) {
        k.attention_backward({.shape = shape,
                              .q = q,
                              .k = key,
                              .v = value,
                              .out = o,
                              .lse = lse,
                              .dout = dout,
                              .dq = dq,
                              .dk = dkv.column_range(0, k_cols),
                              .dv = dkv.column_range(k_cols, k_cols),
                              .workspace = core,
                              .stream = s});
      });
      // Causal: half of the squares.
      const double flops = 2.0 * c.batch * c.heads * c.d * static_cast<double>(c.seq) * c.seq;
      out.push_back({{"kernel", tiles                                ? "tiles"
                                : cuda_libraries().attention.empty() ? "tiles (no library)"
                                                                     : "library"},
                     {"batch", c.batch},
                     {"heads", c.heads},
                     {"kv_heads", c.kv_heads},
                     {"head_dim", c.d},
                     {"seq", c.seq},
                     {"forward_us", 1e6 * forward},
                     {"backward_us", 1e6 * backward},
                     {"forward_TFLOPs", flops / forward / 1e12},
                     {"backward_TFLOPs", 2.5 * flops / backward / 1e12}});
      std::cerr << "attention " << (tiles ? "tiles " : "") << c.heads << "/" << c.kv_heads << " d" << c.d
                << " s" << c.seq << ": " << flops / forward / 1e12 << ", " << 2.5 * flops / backward / 1e12
                << " TFLOP/s\n";
      b.clear();
      if (tiles) break;  // one is enough: they are slow
    }
  return out;
}

int run() {
  std::string why;
  const auto gpus = cuda_gpus(why);
  if (gpus.empty()) {
    std::cout << Json{{"skipped", why}}.dump(1) << '\n';
    return 0;
  }
  Json out = {{"gpu", gpus.front().name},
              {"gemm_library", cuda_libraries().gemm},
              {"attention_library", cuda_libraries().attention}};
  Bench bench;
  double copy_bandwidth = 0;
  out["copies"] = copies(bench, copy_bandwidth);
  out["memory_bound"] = memory_bound(bench, copy_bandwidth);
  out["gemm"] = products(bench);
  out["attention"] = attention(bench);
  std::cout << out.dump(1) << '\n';
  return 0;
}

}  // namespace
}  // namespace sextant

int main() {
  try {
    return sextant::run();
  } catch (const std::exception& error) {
    std::cerr << "cuda_bench: " << error.what() << '\n';
    return 1;
  }
}
