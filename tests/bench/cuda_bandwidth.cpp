// The kernels that are bound by memory, every one that kernels/cuda has: bytes that they have to read and write, over the time
// that they take. And those that move so little that no bandwidth is to be had, by their time.
#include <array>
#include <iostream>
#include <string>

#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/kernels.hpp"
#include "tests/bench/cuda_bench.hpp"

namespace sextant {
namespace {

using Call = std::function<void(NativeStream)>;

class Bandwidths {
 public:
  Bandwidths(Bench& bench, double copy) : b(bench), copy_(copy) {}

  Json take() {
    residual();
    tokens();
    activations();
    loss();
    head();
    state();
    return rows_;
  }

 private:
  void add(const char* name, double bytes, const Call& call, const Call& prepare = {}) {
    const double s = b.seconds(call, prepare);
    rows_.push_back({{"kernel", name},
                     {"time_us", 1e6 * s},
                     {"bandwidth_GBps", bytes / s / 1e9},
                     {"share_of_copy", bytes / s / copy_}});
    std::cerr << name << ": " << 100 * bytes / s / copy_ << " % of the copy\n";
  }

  void residual() {
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
    add("rmsnorm again", 4 * n, [&](NativeStream s) {
      k.rmsnorm_apply({.x = x, .inverse_rms = r, .weight = w, .y = y, .stream = s});
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
    b.clear();
  }

  void tokens() {
    const TensorView x = b.matrix(Dtype::bf16, rows, h), z = b.matrix(Dtype::bf16, rows, h);
    const double n = static_cast<double>(rows * h);
    std::vector<std::int32_t> counting(4096);
    for (std::size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<std::int32_t>(i);
    const auto positions = b.list(counting);
    const TensorView cosine = b.matrix(Dtype::fp32, 4096, 64), sine = b.matrix(Dtype::fp32, 4096, 64);
    for (const bool inverse : {false, true})
      add(inverse ? "rope back" : "rope", 4 * n, [&](NativeStream s) {
        k.rope({.x = x,
                .cos = cosine,
                .sin = sine,
                .heads = 32,
                .head_dim = 128,
                .positions = positions,
                .inverse = inverse,
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

  void activations() {
    const std::int64_t f = 11008;
    const TensorView gate = b.matrix(Dtype::bf16, rows, f), up = b.matrix(Dtype::bf16, rows, f),
                     out = b.matrix(Dtype::bf16, rows, f);
    const double n = static_cast<double>(rows * f);
    add("swiglu forward", 6 * n,
        [&](NativeStream s) { k.swiglu_forward({.gate = gate, .up = up, .out = out, .stream = s}); });
    const TensorView dgate = b.matrix(Dtype::bf16, rows, f), dup = b.matrix(Dtype::bf16, rows, f),
                     dout = b.matrix(Dtype::bf16, rows, f);
    // It overwrites what it reads, which soon would be zeros and infinities.
    add(
        "swiglu backward", 12 * n,
        [&](NativeStream s) { k.swiglu_backward({.gate = dgate, .up = dup, .dout = dout, .stream = s}); },
        [&](NativeStream s) {
          k.cast({.source = gate, .destination = dgate, .stream = s});
          k.cast({.source = up, .destination = dup, .stream = s});
          k.cast({.source = out, .destination = dout, .stream = s});
        });
    b.clear();
  }

  void loss() {
    const std::int64_t chunk = b.extent(4096), vocab = 32000;
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

  // Rows of a vocabulary that are divided by their length.
  void head() {
    const TensorView weight = b.matrix(Dtype::bf16, rows, h), dweight = b.matrix(Dtype::fp32, rows, h),
                     inverse = b.matrix(Dtype::fp32, 1, rows), logits = b.matrix(Dtype::fp32, h, rows);
    const double n = static_cast<double>(rows * h);
    add("row lengths", 2 * n,
        [&](NativeStream s) { k.row_lengths({.x = weight, .inverse = inverse, .stream = s}); });
    add("projected rows", 10 * n, [&](NativeStream s) {
      k.project_rows({.weight = weight, .inverse = inverse, .dweight = dweight, .stream = s});
    });
    // By one, so that values stay what they are.
    const std::vector<float> ones(static_cast<std::size_t>(rows), 1.0F);
    b.device().transfer(inverse.data, ones.data(), Bytes(inverse.bytes()));
    add("scaled columns", 8 * n,
        [&](NativeStream s) { k.scale_columns({.x = logits, .factors = inverse, .stream = s}); });
    b.clear();
  }

  void state() {
    const std::int64_t count = b.extent(std::int64_t{200} << 20);
    const double n = static_cast<double>(count);
    const TensorView p = b.matrix(Dtype::fp32, 1, count), m = b.matrix(Dtype::fp32, 1, count),
                     v = b.matrix(Dtype::fp32, 1, count), g = b.matrix(Dtype::fp32, 1, count),
                     w = b.matrix(Dtype::bf16, 1, count), sum = b.matrix(Dtype::fp64, 1, 1);
    const AdamwScalars scalars = scalars_of({.rate = 1e-4, .correction1 = 0.5, .correction2 = 0.5});
    const Allocation on_device(b.device(), Space::device, Bytes(sizeof scalars));
    b.device().transfer(on_device.data(), &scalars, Bytes(sizeof scalars));
    const ElementRange all{0, count};
    add("adamw", 30 * n, [&](NativeStream s) {
      k.adamw({.master = p,
               .moment1 = m,
               .moment2 = v,
               .gradient = g,
               .parameter = w,
               .decay = {&all, 1},
               .scalars = reinterpret_cast<const AdamwScalars*>(on_device.data()),
               .stream = s});
    });
    add("squared norm", 4 * n,
        [&](NativeStream s) { k.squared_norm({.x = g, .sum = sum.row<double>(), .stream = s}); });
    // By one, so that values stay what they are.
    add("scale", 8 * n, [&](NativeStream s) { k.scale({.x = g, .factor = 1, .stream = s}); });
    add("cast fp32 to bf16", 6 * n,
        [&](NativeStream s) { k.cast({.source = g, .destination = w, .stream = s}); });
    add("cast bf16 to fp32", 6 * n,
        [&](NativeStream s) { k.cast({.source = w, .destination = p, .stream = s}); });
    add("accumulate bf16", 10 * n,
        [&](NativeStream s) { k.accumulate({.source = w, .destination = m, .stream = s}); });
    add("accumulate fp32", 12 * n,
        [&](NativeStream s) { k.accumulate({.source = g, .destination = m, .stream = s}); });
    reductions({&p, &m, &v, &g}, w);
    add("zero", 4 * n, [&](NativeStream s) { k.zero({.x = g, .stream = s}); });
    b.clear();
  }

  // The sum of what ranks that share a GPU hold: of two and of eight parts, which are the halves of `from`.
  void reductions(const std::array<const TensorView*, 4>& from, const TensorView& out) {
    std::vector<const void*> parts;
    for (const TensorView* x : from)
      for (const std::int64_t half : {0, 1})
        parts.push_back(static_cast<const std::byte*>(x->data) + half * (x->bytes() / 2));
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16})
      for (const std::size_t ranks : {std::size_t{2}, parts.size()})
        add(("reduce of " + std::to_string(ranks) + " parts in " + std::string(name(dtype))).c_str(),
            static_cast<double>(ranks + 1) * static_cast<double>(out.bytes()), [&](NativeStream s) {
              cuda::reduce_in_order(std::span(parts).first(ranks), out.data, out.bytes() / size_bytes(dtype),
                                    dtype, false, s);
            });
  }

  static constexpr std::int64_t h = 4096;
  Bench& b;
  double copy_;
  const KernelTable& k = *cuda_kernels();
  std::int64_t rows = b.extent(32768);
  Json rows_ = Json::array();
};

}  // namespace

Json memory_bound(Bench& b, double copy_bandwidth) { return Bandwidths(b, copy_bandwidth).take(); }

// Beside a copy of as many bytes, which no kernel takes less time than.
Json latency_bound(Bench& b) {
  const KernelTable& k = *cuda_kernels();
  Json out = Json::array();
  const TensorView from = b.matrix(Dtype::fp64, 1, 1 << 20), to = b.matrix(Dtype::fp64, 1, 1 << 20);
  const auto add = [&](const char* name, std::int64_t bytes, const Call& call) {
    const double s = b.seconds(call), copy = b.seconds([&](NativeStream) {
      b.device().copy(b.stream(), static_cast<std::byte*>(to.data), Space::device,
                      static_cast<std::byte*>(from.data), Space::device, Bytes(bytes / 2));
    });
    out.push_back({{"kernel", name}, {"bytes", bytes}, {"time_us", 1e6 * s}, {"copy_us", 1e6 * copy}});
    std::cerr << name << ": " << 1e6 * s << " us, a copy " << 1e6 * copy << " us\n";
  };
  // A term for each bucket of a large model.
  const std::int64_t buckets = 512;
  const TensorView squares = b.matrix(Dtype::fp64, 1, buckets), sum = b.matrix(Dtype::fp64, 1, 1);
  add("total", 8 * buckets,
      [&](NativeStream s) { k.total({.x = squares, .sum = sum.row<double>(), .stream = s}); });
  // Of eight tensor-parallel ranks.
  const std::int64_t ranks = 8, rows = b.extent(8192);
  const TensorView stats = b.matrix(Dtype::fp32, ranks * rows, 3), softmax = b.matrix(Dtype::fp32, rows, 2);
  const auto targets = b.list(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 17));
  add("cross entropy combination", rows * (12 * ranks + 8 + 4), [&](NativeStream s) {
    k.cross_entropy_combine(
        {.stats = stats, .targets = targets, .softmax = softmax, .loss = sum.row<double>(), .stream = s});
  });
  b.clear();
  return out;
}

}  // namespace sextant
