// Which kernels does one launch unit of the model need? It becomes GEMMs, an attention core and
// memory-bound passes, in launch order. Sizes only: what they cost is priced elsewhere.
#pragma once

#include <variant>

#include <boost/container/static_vector.hpp>

#include "core/graph/work.hpp"
#include "core/plan/stack_spec.hpp"
#include "cost_models/attention.hpp"
#include "cost_models/gemm.hpp"
#include "cost_models/pointwise.hpp"

namespace sextant {

using Kernel = std::variant<Gemm, AttentionCore, Pointwise>;
using KernelList = boost::container::static_vector<Kernel, 16>;  // no allocation: priced 1e5 times a second

KernelList kernels_of(const BlockWork&, const StackSpec&, const CostConstants&);

// Elements of the block's local weight matrices.
double weight_elements(const BlockWork&);

}  // namespace sextant
