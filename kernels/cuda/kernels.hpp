// Declarations of the GPU's kernels, for the table, the communicators and what times them.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernel_table.hpp"

namespace sextant::cuda {

void gemm(const GemmArgs&);        // cuBLASLt, gemm_tiles where it has nothing
void gemm_tiles(const GemmArgs&);  // plain tiles, one accumulator an element, ascending k
// Operands rounded to fp8; `reference`: in plain tiles. Throws BackendError on GPUs before sm_89.
void gemm_fp8(const GemmArgs&, bool reference);
void rmsnorm_forward(const RmsnormForwardArgs&);
void rmsnorm_apply(const RmsnormApplyArgs&);
void rmsnorm_backward(const RmsnormBackwardArgs&);
void row_dots(const RowDotsArgs&);
void inverse_rms(const InverseRmsArgs&);
void rope(const RopeArgs&);
void attention_forward(const AttentionForwardArgs&);  // cuDNN, the tiles where it has nothing
void attention_backward(const AttentionBackwardArgs&);
void attention_forward_tiles(const AttentionForwardArgs&);
void attention_backward_tiles(const AttentionBackwardArgs&);
void swiglu_forward(const SwigluForwardArgs&);
void swiglu_backward(const SwigluBackwardArgs&);
void embedding_forward(const EmbeddingForwardArgs&);
void embedding_backward(const EmbeddingBackwardArgs&);
void cross_entropy_stats(const CrossEntropyStatsArgs&);
void cross_entropy_combine(const CrossEntropyCombineArgs&);
void cross_entropy_gradient(const CrossEntropyGradientArgs&);
void adamw(const AdamwArgs&);
void squared_norm(const SquaredNormArgs&);
void total(const TotalArgs&);
void add(const AddArgs&);
void add_bias(const AddBiasArgs&);
void bias_gradient(const BiasGradientArgs&);
void row_lengths(const RowLengthsArgs&);
void scale_columns(const ScaleColumnsArgs&);
void project_rows(const ProjectRowsArgs&);
void accumulate(const AccumulateArgs&);
void cast(const CastArgs&);
void random_normal(const RandomNormalArgs&);
void zero(const ZeroArgs&);
void scale(const ScaleArgs&);

// out[i] = reduction over parts of part[i], in pairs by place, in fp32 (fp64 for fp64), rounded once
// (runtime/communicators/ordered_sum.hpp). At most kMaxParts; `out` may be one of the parts.
inline constexpr int kMaxParts = 64;
void reduce_in_order(std::span<const void* const> parts, void* out, std::int64_t count, Dtype, bool maximum,
                     NativeStream);

}  // namespace sextant::cuda
