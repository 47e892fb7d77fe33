// How fast are the CPU kernels? GFLOP/s of matrix products and attention, GB/s of the passes over flat state.
//   build/release/bin/kernels_bench --benchmark_filter=Gemm
// Attention counts the scores a causal query sees: half of 4 b a s^2 d forward, and 2.5 times that backward.
#include <cmath>
#include <numeric>

#include <benchmark/benchmark.h>

#include "core/graph/block_tensors.hpp"
#include "tests/reference/matrix.hpp"

namespace sextant::testing {
namespace {

Matrix filled(Dtype dtype, std::int64_t rows, std::int64_t cols) {
  std::vector<double> values(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(0.37 * static_cast<double>(i));
  return {dtype, rows, cols, values};
}

void flops_rate(benchmark::State& state, double flops) {
  state.counters["GFLOPS"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

enum class Form { forward, input, weight };  // y = x W^T, dx = dy W, dW += dy^T x

void gemm(benchmark::State& state, const KernelTable& table, Dtype dtype, Form form) {
  const std::int64_t tokens = state.range(0), in = state.range(1), out = state.range(2);
  const Matrix x = filled(dtype, tokens, in), w = filled(dtype, out, in), y = filled(dtype, tokens, out);
  const Matrix dw(accumulator_of(dtype), out, in);
  const auto threads = static_cast<int>(state.range(3));
  const GemmArgs args =
      form == Form::forward
          ? GemmArgs{.a = x.view(), .b = w.view(), .c = y.view(), .transpose_b = true, .threads = threads}
      : form == Form::input ? GemmArgs{.a = y.view(), .b = w.view(), .c = x.view(), .threads = threads}
                            : GemmArgs{.a = y.view(),
                                       .b = x.view(),
                                       .c = dw.view(),
                                       .transpose_a = true,
                                       .accumulate = true,
                                       .threads = threads};
  for (auto _ : state) table.gemm(args);
  flops_rate(state, 2.0 * static_cast<double>(tokens * in * out));
}

void attention(benchmark::State& state, Dtype dtype, bool backward) {
  const std::int64_t seq = state.range(0), d = state.range(1), heads = state.range(2),
                     kv_heads = state.range(3);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(seq));
  std::iota(positions.begin(), positions.end(), 0);
  AttentionShape s;
  s.heads = static_cast<int>(heads);
  s.kv_heads = static_cast<int>(kv_heads);
  s.head_dim = static_cast<int>(d);
  s.q_positions = s.k_positions = positions;
  s.scale = 1.0 / std::sqrt(static_cast<double>(d));
  const Dtype a = accumulator_of(dtype);
  const Matrix q = filled(dtype, seq, heads * d), k = filled(dtype, seq, kv_heads * d),
               v = filled(dtype, seq, kv_heads * d);
  const Matrix out(dtype, seq, heads * d), lse(a, seq, heads), dq(dtype, seq, heads * d);
  const Matrix dk(dtype, seq, kv_heads * d), dv(dtype, seq, kv_heads * d);
  const Matrix workspace(a, 1, attention_core_elements(seq, s.heads, s.kv_heads, s.head_dim));
  const auto forward = [&] {
    cpu_kernels().attention_forward(
        {.shape = s, .q = q.view(), .k = k.view(), .v = v.view(), .out = out.view(), .lse = lse.view()});
  };
  forward();
  for (auto _ : state) {
    if (!backward)
      forward();
    else
      cpu_kernels().attention_backward({.shape = s,
                                        .q = q.view(),
                                        .k = k.view(),
                                        .v = v.view(),
                                        .out = out.view(),
                                        .lse = lse.view(),
                                        .dout = q.view(),
                                        .dq = dq.view(),
                                        .dk = dk.view(),
                                        .dv = dv.view(),
                                        .workspace = workspace.view()});
  }
  const double seen = 0.5 * static_cast<double>(seq) * static_cast<double>(seq + 1);
  flops_rate(state, (backward ? 10.0 : 4.0) * static_cast<double>(heads * d) * seen);
}

void bytes_rate(benchmark::State& state, double bytes) {
  state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void adamw(benchmark::State& state, Dtype dtype) {
  const std::int64_t n = state.range(0);
  const Dtype a = accumulator_of(dtype);
  const Matrix master = filled(a, 1, n), m = filled(a, 1, n), v(a, 1, n), gradient = filled(a, 1, n),
               p(dtype, 1, n);
  const ElementRange decay{0, n};
  const AdamwScalars scalars = scalars_of({.rate = 1e-3, .correction1 = 0.1, .correction2 = 0.05});
  for (auto _ : state)
    cpu_kernels().adamw({.master = master.view(),
                         .moment1 = m.view(),
                         .moment2 = v.view(),
                         .gradient = gradient.view(),
                         .parameter = p.view(),
                         .decay = {&decay, 1},
                         .scalars = &scalars});
  bytes_rate(state, static_cast<double>(n * (7 * size_bytes(a) + size_bytes(dtype))));
}

void rmsnorm(benchmark::State& state, Dtype dtype) {
  const std::int64_t rows = state.range(0), h = state.range(1);
  const Matrix x = filled(dtype, rows, h), w = filled(dtype, 1, h), y(dtype, rows, h),
               r(accumulator_of(dtype), 1, rows);
  for (auto _ : state)
    cpu_kernels().rmsnorm_forward(
        {.x = x.view(), .weight = w.view(), .y = y.view(), .inverse_rms = r.view()});
  bytes_rate(state, 2.0 * static_cast<double>(rows * h * size_bytes(dtype)));
}

void swiglu(benchmark::State& state, Dtype dtype) {
  const std::int64_t rows = state.range(0), f = state.range(1);
  const Matrix gate = filled(dtype, rows, f), up = filled(dtype, rows, f), out(dtype, rows, f);
  for (auto _ : state)
    cpu_kernels().swiglu_forward({.gate = gate.view(), .up = up.view(), .out = out.view()});
  bytes_rate(state, 3.0 * static_cast<double>(rows * f * size_bytes(dtype)));
}

void cross_entropy(benchmark::State& state) {
  const std::int64_t rows = state.range(0), vocab = state.range(1);
  const Matrix logits = filled(Dtype::fp32, rows, vocab), stats(Dtype::fp32, rows, 3);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(rows), 5);
  for (auto _ : state)
    cpu_kernels().cross_entropy_stats(
        {.logits = logits.view(), .targets = targets, .vocab = vocab, .stats = stats.view()});
  bytes_rate(state, 4.0 * static_cast<double>(rows * vocab));
}

// The shapes of a 100M-parameter model at sequence 512, and a square one.
void products(benchmark::internal::Benchmark* b) {
  b->ArgNames({"tokens", "in", "out", "threads"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const std::int64_t threads : {1, 2})
    b->Args({512, 768, 768, threads})->Args({512, 768, 2048, threads});
  b->Args({256, 768, 32000, 1})->Args({1024, 1024, 1024, 1});
}
void cores(benchmark::internal::Benchmark* b) {
  b->ArgNames({"seq", "d", "heads", "kv"})->UseRealTime()->Unit(benchmark::kMillisecond);
  b->Args({512, 64, 12, 12})->Args({2048, 64, 4, 4})->Args({2048, 128, 8, 2});
}

BENCHMARK_CAPTURE(gemm, fp32_forward, cpu_kernels(), Dtype::fp32, Form::forward)->Apply(products);
BENCHMARK_CAPTURE(gemm, fp32_input, cpu_kernels(), Dtype::fp32, Form::input)->Apply(products);
BENCHMARK_CAPTURE(gemm, fp32_weight, cpu_kernels(), Dtype::fp32, Form::weight)->Apply(products);
BENCHMARK_CAPTURE(gemm, bf16_forward, cpu_kernels(), Dtype::bf16, Form::forward)->Apply(products);
BENCHMARK_CAPTURE(gemm, bf16_input, cpu_kernels(), Dtype::bf16, Form::input)->Apply(products);
BENCHMARK_CAPTURE(gemm, bf16_weight, cpu_kernels(), Dtype::bf16, Form::weight)->Apply(products);
BENCHMARK_CAPTURE(gemm, reference_fp32, cpu_reference_kernels(), Dtype::fp32, Form::forward)->Apply(products);
BENCHMARK_CAPTURE(gemm, reference_fp64, cpu_reference_kernels(), Dtype::fp64, Form::forward)->Apply(products);
BENCHMARK_CAPTURE(attention, fp32_forward, Dtype::fp32, false)->Apply(cores);
BENCHMARK_CAPTURE(attention, fp32_backward, Dtype::fp32, true)->Apply(cores);
BENCHMARK_CAPTURE(attention, bf16_forward, Dtype::bf16, false)->Apply(cores);
BENCHMARK_CAPTURE(attention, bf16_backward, Dtype::bf16, true)->Apply(cores);
BENCHMARK_CAPTURE(adamw, fp32, Dtype::fp32)->Arg(1 << 22)->UseRealTime();
BENCHMARK_CAPTURE(adamw, bf16, Dtype::bf16)->Arg(1 << 22)->UseRealTime();
BENCHMARK_CAPTURE(rmsnorm, fp32, Dtype::fp32)->Args({512, 768})->UseRealTime();
BENCHMARK_CAPTURE(rmsnorm, bf16, Dtype::bf16)->Args({512, 768})->UseRealTime();
BENCHMARK_CAPTURE(swiglu, fp32, Dtype::fp32)->Args({512, 2048})->UseRealTime();
BENCHMARK_CAPTURE(swiglu, bf16, Dtype::bf16)->Args({512, 2048})->UseRealTime();
BENCHMARK(cross_entropy)->Args({256, 32000})->UseRealTime();

}  // namespace
}  // namespace sextant::testing

BENCHMARK_MAIN();
