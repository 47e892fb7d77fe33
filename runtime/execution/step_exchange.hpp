// What a step takes from the host (tokens, the scalars of its update) and gives back (the loss, the norm of the
// gradient). Kernels find them in memory they can read: the host's own when the device shares it, otherwise one
// block of the device that is filled before a step and read after it, so that nothing is copied within.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_table.hpp"
#include "runtime/devices/device.hpp"
#include "runtime/execution/step_batch.hpp"

namespace sextant {

class StepExchange {
 public:
  // `tokens`: of one micro-batch on this rank.
  StepExchange(Device&, std::size_t buckets, std::size_t microbatches, std::size_t tokens);

  // Of the block, where the device does not share the host's memory.
  static std::int64_t bytes_on_device(std::size_t buckets, std::size_t microbatches, std::size_t tokens);

  // Before a step: its tokens and scalars; results are 0. Both outlive the step.
  void send(const StepBatch&, const AdamwScalars&);
  // After a step.
  struct Results {
    double loss = 0, squared_norm = 0;
  };
  Results fetch();

  // For kernels, and for collectives in a step.
  std::span<const std::int32_t> ids(std::size_t microbatch) const { return tokens(2 * microbatch); }
  std::span<const std::int32_t> targets(std::size_t microbatch) const { return tokens(2 * microbatch + 1); }
  // Where each token's document begins; empty when documents are not kept apart.
  std::span<const std::int32_t> documents(std::size_t microbatch) const;
  const AdamwScalars* scalars() const { return scalars_; }
  double* loss() const { return results_; }
  double* squared_norm() const { return results_ + 1; }
  double* squared(std::size_t bucket) const { return results_ + 2 + bucket; }
  TensorView all_squared() const;

 private:
  std::span<const std::int32_t> tokens(std::size_t list) const;
  const std::int32_t* lists() const;
  std::int64_t bytes() const;

  Device& device_;
  std::size_t buckets_, microbatches_, tokens_;
  const StepBatch* batch_ = nullptr;
  bool apart_ = false;  // this step's documents
  // [loss, squared norm, squared norm of every bucket][scalars][ids, targets by micro-batch][documents by micro-batch]
  std::vector<double> host_;
  Allocation memory_;
  double* results_ = nullptr;
  const AdamwScalars* scalars_ = nullptr;
};

}  // namespace sextant
