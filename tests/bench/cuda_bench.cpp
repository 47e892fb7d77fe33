// What the GPU's kernels reach: copies, matrix products, attention, and the memory-bound kernels as a share of the
// copy bandwidth. Medians of repeats between device events, after warming up; operands of several times the
// second cache. Prints one JSON object. Without a GPU it says so and ends well.
//   cuda_bench [SMALLER]      operands that many times smaller: a rehearsal, whose figures mean nothing
#include "tests/bench/cuda_bench.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "core/graph/block_tensors.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/positions.hpp"

namespace sextant {
namespace {

Json copies(Bench& b, double& copy_bandwidth) {
  Json out;
  const std::int64_t bytes = b.extent(std::int64_t{2} << 30);
  const TensorView from = b.matrix(Dtype::bf16, 1, bytes / 2), to = b.matrix(Dtype::bf16, 1, bytes / 2);
  const double vendor = b.seconds([&](NativeStream) {
    b.device().copy(b.stream(), static_cast<std::byte*>(to.data), Space::device,
                    static_cast<std::byte*>(from.data), Space::device, Bytes(bytes));
  });
  copy_bandwidth = 2.0 * static_cast<double>(bytes) / vendor;
  out["device_to_device_GBps"] = copy_bandwidth / 1e9;
  const Allocation host(b.device(), Space::host, Bytes(bytes / 4));
  auto* device = static_cast<std::byte*>(to.data);
  const double up = b.seconds([&](NativeStream) {
    b.device().copy(b.stream(), device, Space::device, host.data(), Space::host, Bytes(bytes / 4));
  });
  const double down = b.seconds([&](NativeStream) {
    b.device().copy(b.stream(), host.data(), Space::host, device, Space::device, Bytes(bytes / 4));
  });
  out["host_to_device_GBps"] = static_cast<double>(bytes / 4) / up / 1e9;
  out["device_to_host_GBps"] = static_cast<double>(bytes / 4) / down / 1e9;
  b.clear();
  return out;
}

Json products(Bench& b) {
  Json out = Json::array();
  struct Extent {
    std::int64_t m, n, k;
  };
  for (const Extent full : {Extent{8192, 8192, 8192},
                            {8192, 2048, 2048},
                            {8192, 8192, 2048},
                            {8192, 4096, 4096},
                            {8192, 11008, 4096},
                            {8192, 4096, 11008},
                            {512, 32000, 4096}})
    for (const char* form : {"forward", "input", "weight"}) {
      const Extent e{b.extent(full.m), b.extent(full.n), b.extent(full.k)};
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

// NOLINTNEXTLINE(readability-function-size): of each shape its operands, two timings and a row of the table
Json attention(Bench& b) {
  Json out = Json::array();
  struct Shape {
    int batch, heads, kv_heads, d, seq, window = 0;
    bool alibi = false;
  };
  for (const bool tiles : {false, true})
    for (Shape c : {Shape{4, 16, 16, 128, 2048},
                    {2, 32, 32, 128, 4096},
                    {2, 32, 8, 128, 4096},
                    {4, 32, 8, 64, 2048},
                    {1, 32, 8, 128, 8192},
                    {1, 32, 8, 128, 8192, 1024},
                    {1, 40, 40, 128, 4096, 0, true}}) {
      c.seq = static_cast<int>(b.extent(c.seq));
      c.window = std::min(c.window, c.seq / 8);
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
      const KernelTable& k = *cuda_kernels(tiles ? KernelSet::reference : KernelSet::fast);
      const AttentionShape shape{.batch = c.batch,
                                 .heads = c.heads,
                                 .kv_heads = c.kv_heads,
                                 .head_dim = c.d,
                                 .q_positions = positions,
                                 .k_positions = positions,
                                 .window = c.window,
                                 .slopes = c.alibi ? b.matrix(Dtype::fp32, 1, c.heads) : TensorView(),
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
      // Causal: half of the squares, of them what the window leaves.
      const double flops =
          2.0 * c.batch * c.heads * c.d * static_cast<double>(c.seq) * c.seq * visible_share(c.window, c.seq);
      out.push_back({{"kernel", tiles                                ? "tiles"
                                : cuda_libraries().attention.empty() ? "tiles (no library)"
                                                                     : "library"},
                     {"batch", c.batch},
                     {"heads", c.heads},
                     {"kv_heads", c.kv_heads},
                     {"head_dim", c.d},
                     {"seq", c.seq},
                     {"window", c.window},
                     {"alibi", c.alibi},
                     {"forward_us", 1e6 * forward},
                     {"backward_us", 1e6 * backward},
                     {"forward_TFLOPs", flops / forward / 1e12},
                     {"backward_TFLOPs", 2.5 * flops / backward / 1e12}});
      std::cerr << "attention " << (tiles ? "tiles " : "") << c.heads << "/" << c.kv_heads << " d" << c.d
                << " s" << c.seq << (c.window ? " window" : "") << (c.alibi ? " alibi" : "") << ": "
                << flops / forward / 1e12 << ", " << 2.5 * flops / backward / 1e12 << " TFLOP/s\n";
      b.clear();
      if (tiles) break;  // one is enough: they are slow
    }
  return out;
}

int run(std::int64_t smaller) {
  std::string why;
  const auto gpus = cuda_gpus(why);
  if (gpus.empty()) {
    std::cout << Json{{"skipped", why}}.dump(1) << '\n';
    return 0;
  }
  Json out = {{"gpu", gpus.front().name},
              {"gemm_library", cuda_libraries().gemm},
              {"attention_library", cuda_libraries().attention}};
  Bench bench(smaller);
  double copy_bandwidth = 0;
  out["copies"] = copies(bench, copy_bandwidth);
  out["memory_bound"] = memory_bound(bench, copy_bandwidth);
  out["latency_bound"] = latency_bound(bench);
  out["gemm"] = products(bench);
  out["attention"] = attention(bench);
  out["fp8"] = fp8_gemms(bench);
  std::cout << out.dump(1) << '\n';
  return 0;
}

}  // namespace
}  // namespace sextant

int main(int argc, char** argv) {
  try {
    return sextant::run(argc > 1 ? std::max(std::atoll(argv[1]), 1LL) : 1);
  } catch (const std::exception& error) {
    std::cerr << "cuda_bench: " << error.what() << '\n';
    return 1;
  }
}
