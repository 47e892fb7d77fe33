// Declarations of the CPU kernels, for the table and for nobody else.
#pragma once

#include "kernels/kernel_table.hpp"

namespace sextant::cpu {

void gemm_reference(const GemmArgs&);
void gemm_fast(const GemmArgs&);  // gemm_onednn.cpp or no_onednn.cpp
// With operands rounded to fp8, by `product`.
void gemm_fp8(const GemmArgs&, void (*product)(const GemmArgs&));
void rmsnorm_forward(const RmsnormForwardArgs&);
void rmsnorm_apply(const RmsnormApplyArgs&);
void rmsnorm_backward(const RmsnormBackwardArgs&);
void rope(const RopeArgs&);
void attention_forward(const AttentionForwardArgs&);
void attention_backward(const AttentionBackwardArgs&);
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
void row_dots(const RowDotsArgs&);
void inverse_rms(const InverseRmsArgs&);
void scale_columns(const ScaleColumnsArgs&);
void project_rows(const ProjectRowsArgs&);
void accumulate(const AccumulateArgs&);
void cast(const CastArgs&);
void random_normal(const RandomNormalArgs&);
void zero(const ZeroArgs&);
void scale(const ScaleArgs&);

}  // namespace sextant::cpu
