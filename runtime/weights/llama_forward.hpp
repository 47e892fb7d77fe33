// A LLaMA of one rank, forward only: what comes after this text? Its weights whole in memory, the units of
// kernels/blocks.hpp in straight lines, keys and values of earlier tokens kept. For looking at a checkpoint, not for
// serving it: one sequence, no batching.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/model/model_spec.hpp"
#include "kernels/blocks.hpp"
#include "kernels/positions.hpp"
#include "runtime/weights/model_slice.hpp"

namespace sextant {

class LlamaForward {
 public:
  // Reads all weights into `dtype`; `capacity` tokens is the longest sequence.
  LlamaForward(const ModelSpec&, const KernelTable&, Dtype dtype, const WeightSource&, std::int64_t capacity,
               int threads = 1);

  // Appends tokens to the sequence. Logits of the last of them, or of all, [tokens, vocabulary].
  enum class Logits : std::uint8_t { last, all };
  std::vector<double> extend(std::span<const std::int32_t> ids, Logits = Logits::last);
  void restart() { length_ = 0; }
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  const ModelSpec& model() const { return model_; }

 private:
  class Memory {
   public:
    Memory() = default;
    Memory(Dtype dtype, std::int64_t rows, std::int64_t cols);
    TensorView view() { return {data_.data(), dtype_, rows_, cols_}; }

   private:
    std::vector<std::uint64_t> data_;
    Dtype dtype_ = Dtype::fp32;
    std::int64_t rows_ = 0, cols_ = 0;
  };

  TensorView weight(ParameterKind kind, int layer = 0) {
    return weights_.at(parameter_name(kind, layer)).view();
  }
  TensorView weight_or_none(ParameterKind kind, int layer) {
    const auto at = weights_.find(parameter_name(kind, layer));
    return at == weights_.end() ? TensorView() : at->second.view();
  }
  AttentionWeights attention_weights(int layer);
  MlpWeights mlp_weights(int layer);
  BlockWork work(BlockKind, std::int64_t tokens) const;
  void refuse_unknown(std::span<const std::int32_t> ids) const;
  struct Activations;  // of the tokens that are appended
  void norm_before(const BlockContext&, ParameterKind, int layer, Activations&);
  void norm_after(const BlockContext&, ParameterKind, int layer, Activations&);
  void forward_layer(const BlockContext&, int layer, std::int64_t tokens, Activations&);
  std::vector<double> logits_of(const TensorView& normed);

  ModelSpec model_;
  const KernelTable& kernels_;
  Dtype dtype_;
  std::int64_t capacity_, length_ = 0;
  int threads_;
  RopeTable rope_;
  std::map<std::string, Memory> weights_;
  std::vector<Memory> keys_values_;  // by layer: [capacity, keys then values]
};

}  // namespace sextant
