// System: the GPU's kernel tables. Expectation: what the CPU's reference table gives, for fresh random inputs, at
// awkward extents, with and without 16-byte alignment, into poisoned outputs, with neighbours left alone.
#include "kernels/positions.hpp"
#include "tests/cuda/twin.hpp"

namespace sextant::testing {
namespace {

class CudaKernels : public GpuTest {};

TEST_F(CudaKernels, PassesOverFlatState) {
  for_each_extent([&](Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap) {
    const Dtype wide = accumulator_of(dtype);
    const Twin a(dtype, rows, cols + gap), b(dtype, rows, cols + gap), sum(wide, rows, cols + gap),
        scaled(dtype, rows, cols + gap), zeroed(dtype, rows, cols + gap);
    const Twin out = Twin::poisoned(dtype, rows, cols + gap);
    const Twin cast_up = Twin::poisoned(wide, rows, cols + gap),
               cast_down = Twin::poisoned(Dtype::bf16, rows, cols + gap);
    on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
      const auto at = [&](const Twin& t) { return t.on(gpu).column_range(0, cols); };
      k.add({.a = at(a), .b = at(b), .out = at(out), .stream = s});
      k.accumulate({.source = at(a), .destination = at(sum), .stream = s});
      k.cast({.source = at(a), .destination = at(cast_up), .stream = s});
      k.cast({.source = at(sum), .destination = at(cast_down), .stream = s});
      k.scale({.x = at(scaled), .factor = 0.37, .stream = s});
      k.zero({.x = at(zeroed), .stream = s});
    });
    // One rounding each: the same bits.
    const std::string what = label("flat", dtype, rows, cols, gap);
    for (const Twin* t : {&out, &sum, &cast_up, &cast_down, &scaled, &zeroed})
      EXPECT_EQ(to_doubles(t->downloaded().view().column_range(0, cols)),
                to_doubles(t->on(false).column_range(0, cols)))
          << what;
    scaled.expect_columns_alike(0, cols, 1e-30, what);
    zeroed.expect_columns_alike(0, cols, 1e-30, what);
  });
}

TEST_F(CudaKernels, BiasesAndTheirGradients) {
  for_each_extent([&](Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap) {
    const Dtype wide = accumulator_of(dtype);
    const Twin x(dtype, rows, cols + gap), dy(dtype, rows, cols + gap), bias(dtype, 1, cols),
        dbias(wide, 1, cols);
    on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
      k.add_bias({.x = x.on(gpu).column_range(0, cols), .bias = bias.on(gpu), .stream = s});
      k.bias_gradient({.dy = dy.on(gpu).column_range(0, cols), .dbias = dbias.on(gpu), .stream = s});
    });
    const std::string what = label("bias", dtype, rows, cols, gap);
    x.expect_columns_alike(0, cols, 0, what);  // one rounding each
    dbias.expect_alike(dtype == Dtype::fp64 ? 1e-14 : 1e-5, what);
  });
}

TEST_F(CudaKernels, SquaredNormAndTotal) {
  for_each_extent([&](Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap) {
    const Twin x(dtype, rows, cols + gap), sum(Dtype::fp64, 1, 1), parts(Dtype::fp64, 1, rows + 1),
        total = Twin::poisoned(Dtype::fp64, 1, 1);
    on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
      k.squared_norm({.x = x.on(gpu).column_range(0, cols), .sum = sum.on(gpu).row<double>(), .stream = s});
      k.total({.x = parts.on(gpu), .sum = total.on(gpu).row<double>(), .stream = s});
    });
    sum.expect_alike(1e-12, label("squared norm", dtype, rows, cols, gap));
    total.expect_alike(0, label("total", dtype, rows, cols, gap));
  });
}

// So many that a thread reads several packs together.
TEST_F(CudaKernels, SquaredNormOfALongRow) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    const std::int64_t cols = 4 * 512 * 256 * (16 / size_bytes(dtype)) * 5 / 4 + 3;
    const Twin x(dtype, 1, cols), sum(Dtype::fp64, 1, 1);
    on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
      k.squared_norm({.x = x.on(gpu), .sum = sum.on(gpu).row<double>(), .stream = s});
    });
    sum.expect_alike(1e-12, label("squared norm", dtype, 1, cols));
  }
}

TEST_F(CudaKernels, AdamwGivesTheBitsOfTheCpu) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t n : {1, 7, 130, 5003}) {
      const Dtype wide = accumulator_of(dtype);
      const Twin master(wide, 1, n), m(wide, 1, n), v(wide, 1, n, 0.1, 1.0), gradient(wide, 1, n);
      const Twin parameter = Twin::poisoned(dtype, 1, n);
      const AdamwScalars scalars =
          scalars_of({.rate = 3e-3, .gradient_scale = 0.7, .correction1 = 0.19, .correction2 = 0.1});
      static_assert(sizeof scalars == 40);
      std::vector<double> raw(5);
      std::memcpy(raw.data(), &scalars, sizeof scalars);
      Allocation on_gpu(*test_gpu(), Space::device, Bytes(40));
      test_gpu()->transfer(on_gpu.data(), raw.data(), Bytes(40));
      const std::vector<ElementRange> decay = {{1, n / 3}, {n / 2, n}};
      on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
        k.adamw({.master = master.on(gpu),
                 .moment1 = m.on(gpu),
                 .moment2 = v.on(gpu),
                 .gradient = gradient.on(gpu),
                 .parameter = parameter.on(gpu),
                 .decay = decay,
                 .scalars = gpu ? reinterpret_cast<const AdamwScalars*>(on_gpu.data()) : &scalars,
                 .stream = s});
      });
      for (const Twin* t : {&master, &m, &v, &parameter}) t->expect_alike(0, label("adamw", dtype, 1, n));
    }
}

// Whole tensors, slices by rows and by columns, beginnings that split a pair, and outputs at any alignment.
TEST_F(CudaKernels, RandomNormalGivesTheBitsOfTheCpu) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t n : {1, 2, 9, 700, 5003})
      for (const std::int64_t begin : {0, 1, 4})
        for (const std::int64_t shift : {0, 1})
          for (const bool part : {false, true}) {
            if (left_out()) continue;
            const Twin x = Twin::poisoned(dtype, 1, n + 8);
            RandomNormalArgs args{.x = {},
                                  .key = 0x1234567890abcdefu,
                                  .begin = begin,
                                  .cols = 20,
                                  .model_cols = 20,
                                  .deviation = 0.02};
            args.first_row = 3;
            if (part) {
              args.first_col = 11;
              args.model_cols = 57;
            }
            const auto fill = [&](std::uint64_t key) {
              on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
                RandomNormalArgs own = args;
                own.x = x.on(gpu).column_range(shift, n);
                own.stream = s;
                own.key = gpu ? key : args.key;
                k.random_normal(own);
              });
            };
            fill(args.key);
            x.expect_columns_alike(shift, n, 1e-300, label("random", dtype, begin, n, shift));
            fill(args.key + 1);
            EXPECT_NE(to_doubles(x.downloaded().view().column_range(shift, n)),
                      to_doubles(x.on(false).column_range(shift, n)))
                << "control";
          }
}

TEST_F(CudaKernels, RopeBothWays) {
  for (const Dtype dtype : kDtypes)
    for (const int d : {2, 10, 64, 128})
      for (const int heads : {1, 3})
        for (const auto& [sequences, tokens] : {std::pair{1, 1}, {1, 7}, {2, 37}, {1, 129}}) {
          if (left_out()) continue;
          ModelSpec model;
          model.head_dim = d;
          const Dtype wide = accumulator_of(dtype);
          const RopeTable angles(model, 300, wide);
          const std::int64_t half = d / 2, rows = std::int64_t{sequences} * tokens,
                             cols = std::int64_t{heads} * d;
          const Twin cosine(wide, 300, half, to_doubles(angles.cos())),
              sine(wide, 300, half, to_doubles(angles.sin()));
          std::vector<std::int32_t> list;
          for (int i = 1; i <= tokens; ++i) list.push_back(i * 89 % 300);
          const TwinList positions(list);
          const Twin x(dtype, rows, cols + 8), back(dtype, rows, cols);
          on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
            RopeArgs args{.x = x.on(gpu).column_range(0, cols),
                          .cos = cosine.on(gpu),
                          .sin = sine.on(gpu),
                          .heads = heads,
                          .head_dim = d,
                          .positions = positions.on(gpu),
                          .stream = s};
            k.rope(args);
            args.x = back.on(gpu);
            args.inverse = true;
            k.rope(args);
          });
          x.expect_columns_alike(0, cols, bound_of(dtype), label("rope", dtype, rows, d, heads));
          back.expect_alike(bound_of(dtype), label("rope back", dtype, rows, d, heads));
        }
}

TEST_F(CudaKernels, Swiglu) {
  for_each_extent([&](Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap) {
    const Twin gate(dtype, rows, cols + gap, 3.0), up(dtype, rows, cols + gap), dout(dtype, rows, cols + gap);
    const Twin out = Twin::poisoned(dtype, rows, cols + gap);
    on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
      const auto at = [&](const Twin& t) { return t.on(gpu).column_range(0, cols); };
      k.swiglu_forward({.gate = at(gate), .up = at(up), .out = at(out), .stream = s});
      k.swiglu_backward({.gate = at(gate), .up = at(up), .dout = at(dout), .stream = s});
    });
    const std::string what = label("swiglu", dtype, rows, cols, gap);
    for (const Twin* t : {&out, &gate, &up, &dout})
      t->expect_columns_alike(0, cols, bound_of(dtype, 2), what);
  });
}

// Gate and up as two ranges of the columns of one product, with both alignments.
TEST_F(CudaKernels, SwigluOfOneGemm) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t width : {8, 95, 1000}) {
      const Twin both(dtype, 129, 2 * width, 2.0), dout(dtype, 129, width);
      const Twin out = Twin::poisoned(dtype, 129, width);
      on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
        const TensorView gate = both.on(gpu).column_range(0, width),
                         up = both.on(gpu).column_range(width, width);
        k.swiglu_forward({.gate = gate, .up = up, .out = out.on(gpu), .stream = s});
        k.swiglu_backward({.gate = gate, .up = up, .dout = dout.on(gpu), .stream = s});
      });
      for (const Twin* t : {&both, &dout, &out})
        t->expect_alike(bound_of(dtype, 2), label("swiglu of one product", dtype, 129, width));
    }
}

// Run three times, the same bits: for all kernels that sum, and for a library's product. Apart, since racecheck does not know
// by what means a library orders its shared memory: no program under it calls one.
void expect_repeats(const KernelTable& table, bool gemm_alone) {
  const std::int64_t rows = 300, cols = 512;
  const Twin x(Dtype::bf16, rows, cols), weight(Dtype::bf16, 1, cols), dy(Dtype::bf16, rows, cols),
      inverse(Dtype::fp32, 1, rows, 0.1, 1.0), b(Dtype::bf16, cols, 40);
  std::vector<std::vector<double>> first;
  for (int run = 0; run < 3; ++run) {
    const Twin dx = Twin::poisoned(Dtype::bf16, rows, cols),
               dweight(Dtype::fp32, 1, cols, std::vector<double>(512, 0.0)),
               norm(Dtype::fp64, 1, 1, std::vector<double>{0}),
               product = Twin::poisoned(Dtype::fp32, rows, 40);
    test_gpu()->launch(test_stream(), [&](NativeStream s) {
      table.gemm({.a = x.on(true), .b = b.on(true), .c = product.on(true), .stream = s});
      if (gemm_alone) return;
      table.rmsnorm_backward({.x = x.on(true),
                              .inverse_rms = inverse.on(true),
                              .weight = weight.on(true),
                              .dy = dy.on(true),
                              .bypass = {},
                              .dx = dx.on(true),
                              .dweight = dweight.on(true),
                              .stream = s});
      table.squared_norm({.x = dy.on(true), .sum = norm.on(true).row<double>(), .stream = s});
    });
    synchronize_gpu();
    std::vector<std::vector<double>> now = {to_doubles(product.downloaded().view())};
    if (!gemm_alone)
      for (const Twin* t : {&dx, &dweight, &norm}) now.push_back(to_doubles(t->downloaded().view()));
    if (run == 0)
      first = now;
    else
      EXPECT_EQ(now, first) << "run " << run;
  }
}
TEST_F(CudaKernels, RepeatInEveryBit) { expect_repeats(*cuda_kernels(KernelSet::reference), false); }
TEST_F(CudaKernels, TheLibrarysGemmRepeats) { expect_repeats(table(), true); }

// Negative controls: the comparison sees an element that was not written, and one that is wrong.
TEST_F(CudaKernels, TheComparisonSeesWhatIsWrong) {
  const Twin a(Dtype::fp32, 7, 95, 1.0, 10.0), out = Twin::poisoned(Dtype::fp32, 7, 95);  // none near 0
  on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
    k.cast({.source = a.on(gpu).row_range(0, gpu ? 6 : 7),
            .destination = out.on(gpu).row_range(0, gpu ? 6 : 7),
            .stream = s});
  });
  EXPECT_GT(relative_distance(to_doubles(out.downloaded().view()), to_doubles(out.on(false))), 1e6);
  on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
    k.cast({.source = a.on(gpu), .destination = out.on(gpu), .stream = s});
    k.scale({.x = out.on(gpu).row_range(3, 1).column_range(5, 1), .factor = gpu ? 1.5 : 1.0, .stream = s});
  });
  EXPECT_GT(relative_distance(to_doubles(out.downloaded().view()), to_doubles(out.on(false))), 1e-4);
}

TEST_F(CudaKernels, AStreamIsAsked) {
  const Twin a(Dtype::fp32, 1, 4);
  EXPECT_ANY_THROW(table().scale({.x = a.on(true), .factor = 2}));
}

}  // namespace
}  // namespace sextant::testing
