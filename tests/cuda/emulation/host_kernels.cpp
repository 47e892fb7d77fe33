// The GPU's kernels as the CPU's reference, in the order of streams: for tests of what enqueues them, since fibers are
// slow.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/cuda/cuda_stream.hpp"
#include "kernels/cuda/fp8.hpp"
#include "kernels/cuda/kernels.hpp"
#include "runtime/communicators/ordered_sum.hpp"
#include "tests/cuda/emulation/gpu.hpp"

namespace sextant::cuda {
namespace {

template <auto kMember, class Args>
void enqueue(Args g) {
  const CudaStream& s = stream_of(g.stream);
  g.stream = {};
  check(emulation::enqueue(s.stream, [g] { (cpu_reference_kernels().*kMember)(g); }), "a kernel");
}

}  // namespace

void gemm_tiles(const GemmArgs& g) { enqueue<&KernelTable::gemm>(g); }
void rmsnorm_forward(const RmsnormForwardArgs& g) { enqueue<&KernelTable::rmsnorm_forward>(g); }
void rmsnorm_apply(const RmsnormApplyArgs& g) { enqueue<&KernelTable::rmsnorm_apply>(g); }
void rmsnorm_backward(const RmsnormBackwardArgs& g) { enqueue<&KernelTable::rmsnorm_backward>(g); }
void row_dots(const RowDotsArgs& g) { enqueue<&KernelTable::row_dots>(g); }
void inverse_rms(const InverseRmsArgs& g) { enqueue<&KernelTable::inverse_rms>(g); }
void rope(const RopeArgs& g) { enqueue<&KernelTable::rope>(g); }
void attention_forward_tiles(const AttentionForwardArgs& g) { enqueue<&KernelTable::attention_forward>(g); }
void attention_backward_tiles(const AttentionBackwardArgs& g) {
  enqueue<&KernelTable::attention_backward>(g);
}
void swiglu_forward(const SwigluForwardArgs& g) { enqueue<&KernelTable::swiglu_forward>(g); }
void swiglu_backward(const SwigluBackwardArgs& g) { enqueue<&KernelTable::swiglu_backward>(g); }
void embedding_forward(const EmbeddingForwardArgs& g) { enqueue<&KernelTable::embedding_forward>(g); }
void embedding_backward(const EmbeddingBackwardArgs& g) { enqueue<&KernelTable::embedding_backward>(g); }
void cross_entropy_stats(const CrossEntropyStatsArgs& g) { enqueue<&KernelTable::cross_entropy_stats>(g); }
void cross_entropy_combine(const CrossEntropyCombineArgs& g) {
  enqueue<&KernelTable::cross_entropy_combine>(g);
}
void cross_entropy_gradient(const CrossEntropyGradientArgs& g) {
  enqueue<&KernelTable::cross_entropy_gradient>(g);
}
void squared_norm(const SquaredNormArgs& g) { enqueue<&KernelTable::squared_norm>(g); }
void total(const TotalArgs& g) { enqueue<&KernelTable::total>(g); }
void add(const AddArgs& g) { enqueue<&KernelTable::add>(g); }
void add_bias(const AddBiasArgs& g) { enqueue<&KernelTable::add_bias>(g); }
void bias_gradient(const BiasGradientArgs& g) { enqueue<&KernelTable::bias_gradient>(g); }
void row_lengths(const RowLengthsArgs& g) { enqueue<&KernelTable::row_lengths>(g); }
void scale_columns(const ScaleColumnsArgs& g) { enqueue<&KernelTable::scale_columns>(g); }
void project_rows(const ProjectRowsArgs& g) { enqueue<&KernelTable::project_rows>(g); }
void accumulate(const AccumulateArgs& g) { enqueue<&KernelTable::accumulate>(g); }
void cast(const CastArgs& g) { enqueue<&KernelTable::cast>(g); }
void random_normal(const RandomNormalArgs& g) { enqueue<&KernelTable::random_normal>(g); }
void zero(const ZeroArgs& g) { enqueue<&KernelTable::zero>(g); }
void scale(const ScaleArgs& g) { enqueue<&KernelTable::scale>(g); }

// An operand's codes and its factor, as kernels/cuda/fp8.cu makes them.
static void cast_on_host(const Fp8Operand& o, float* down) {
  if (!o.wanted()) return;
  const auto bits = [&](std::int64_t r, std::int64_t c) {
    return std::uint32_t{o.source.row<Bfloat16>(r)[c].bits};
  };
  const std::int64_t words = std::int64_t{o.largest.parts} * Fp8Largest::kWords;
  if (!o.largest.known) {
    std::fill_n(o.largest.words, words, 0u);
    std::int64_t end = 0, part = -1;
    for (std::int64_t r = 0; r < o.source.rows; ++r) {
      while (r == end) {
        ++part;
        end += o.largest.parts == 1 ? o.source.rows : o.largest.rows[part];
      }
      std::uint32_t& most = o.largest.words[part * Fp8Largest::kWords + r % Fp8Largest::kWords];
      for (std::int64_t c = 0; c < o.source.cols; ++c) most = std::max(most, bits(r, c) & 0x7fffu);
    }
  }
  const fp8::Scale scale =
      fp8::scale_of(*std::max_element(o.largest.words, o.largest.words + words), o.format);
  *down = scale.down;
  for (std::int64_t r = 0; r < o.source.rows; ++r)
    for (std::int64_t c = 0; c < o.source.cols; ++c) {
      const std::uint8_t code = fp8::encode(fp8::float_of(bits(r, c) << 16) * scale.up, o.format);
      if (o.codes) o.codes[r * o.source.cols + c] = code;
      if (o.turned) o.turned[c * o.source.rows + r] = code;
    }
}
void fp8_operands(const Fp8Operand& a, const Fp8Operand& b, Fp8Room* room, NativeStream stream) {
  check(emulation::enqueue(stream_of(stream).stream,
                           [=] {
                             cast_on_host(a, room->down);
                             cast_on_host(b, room->down + kFp8Factor);
                           }),
        "a kernel");
}
void gemm_codes_tiles(const GemmArgs& g, const float* down) {
  check(emulation::enqueue(
            stream_of(g.stream).stream,
            [=] {
              const auto value = [](const TensorView& x, Fp8 format, std::int64_t r, std::int64_t k) {
                return fp8::decode(static_cast<const std::uint8_t*>(x.data)[r * x.stride + k], format);
              };
              std::vector<float> product(static_cast<std::size_t>(g.c.cols));
              for (std::int64_t r = 0; r < g.c.rows; ++r) {
                for (std::int64_t c = 0; c < g.c.cols; ++c) {
                  float sum = 0;
                  for (std::int64_t k = 0; k < g.a.cols; ++k)
                    sum += value(g.a, g.round_a, r, k) * value(g.b, g.round_b, c, k);
                  product[static_cast<std::size_t>(c)] = sum * down[0] * down[kFp8Factor];
                }
                const TensorView row(product.data(), Dtype::fp32, 1, g.c.cols), to = g.c.row_range(r, 1);
                if (g.accumulate) {
                  TensorView before = row;
                  std::vector<float> kept(product.size());
                  before.data = kept.data();
                  cpu_reference_kernels().cast({.source = to, .destination = before});
                  for (std::size_t i = 0; i < kept.size(); ++i) product[i] += kept[i];
                }
                cpu_reference_kernels().cast({.source = row, .destination = to});
              }
            }),
        "a kernel");
}

void adamw(const AdamwArgs& g) {  // its ranges are the caller's
  const CudaStream& s = stream_of(g.stream);
  const std::vector<ElementRange> decay(g.decay.begin(), g.decay.end());
  check(emulation::enqueue(s.stream,
                           [g, decay] {
                             AdamwArgs own = g;
                             own.decay = decay;
                             own.stream = {};
                             cpu_reference_kernels().adamw(own);
                           }),
        "a kernel");
}

void reduce_in_order(std::span<const void* const> parts, void* out, std::int64_t count, Dtype dtype,
                     bool maximum, NativeStream stream) {
  const std::vector<const void*> all(parts.begin(), parts.end());
  check(emulation::enqueue(stream_of(stream).stream,
                           [=] {
                             sextant::reduce_in_order(all, out, count, dtype,
                                                      maximum ? Reduction::max : Reduction::sum);
                           }),
        "a kernel");
}

}  // namespace sextant::cuda
