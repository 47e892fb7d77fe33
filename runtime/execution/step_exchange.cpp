#include "runtime/execution/step_exchange.hpp"

#include <algorithm>
#include <cstring>

#include "core/base/error.hpp"

namespace sextant {

static_assert(sizeof(AdamwScalars) % sizeof(double) == 0);

StepExchange::StepExchange(Device& device, std::size_t buckets, std::size_t microbatches, std::size_t tokens)
    : device_(device), buckets_(buckets), microbatches_(microbatches), tokens_(tokens) {
  const std::size_t results = 2 + buckets_;
  if (device_.unified()) {
    host_.resize(results);
    results_ = host_.data();
    return;
  }
  host_.resize(static_cast<std::size_t>(bytes_on_device(buckets_, microbatches_, tokens_)) / sizeof(double));
  memory_ = Allocation(device_, Space::device, Bytes(bytes()));
  results_ = reinterpret_cast<double*>(memory_.data());
  scalars_ = reinterpret_cast<const AdamwScalars*>(results_ + results);
}

std::int64_t StepExchange::bytes_on_device(std::size_t buckets, std::size_t microbatches,
                                           std::size_t tokens) {
  const std::size_t list_bytes = 3 * microbatches * tokens * sizeof(std::int32_t);
  return static_cast<std::int64_t>((2 + buckets) * sizeof(double) + sizeof(AdamwScalars) +
                                   (list_bytes + 7) / 8 * sizeof(double));
}

std::int64_t StepExchange::bytes() const { return static_cast<std::int64_t>(host_.size() * sizeof(double)); }

void StepExchange::send(const StepBatch& batch, const AdamwScalars& scalars) {
  std::fill_n(host_.begin(), 2 + buckets_, 0.0);
  batch_ = &batch;
  if (device_.unified()) {
    scalars_ = &scalars;
    return;
  }
  double* at = host_.data() + 2 + buckets_;
  std::memcpy(at, &scalars, sizeof scalars);
  auto* const lists = reinterpret_cast<std::int32_t*>(at + sizeof scalars / sizeof(double));
  std::int32_t* to = lists;
  SEXTANT_CHECK(batch.microbatches.size() <= microbatches_, "a step has the micro-batches of its plan");
  apart_ = !batch.microbatches.front().documents.empty();
  const auto put = [&](const std::vector<std::int32_t>& list) {
    SEXTANT_CHECK(list.size() == tokens_, "a micro-batch has the tokens of its plan");
    to = std::ranges::copy(list, to).out;
  };
  for (const MicrobatchTokens& m : batch.microbatches) {
    put(m.ids);
    put(m.targets);
  }
  if (apart_) {
    to = lists + 2 * microbatches_ * tokens_;  // behind those of micro-batches that the replica lacks
    for (const MicrobatchTokens& m : batch.microbatches) put(m.documents);
  }
  const auto used = reinterpret_cast<std::byte*>(to) - reinterpret_cast<std::byte*>(host_.data());
  device_.transfer(memory_.data(), host_.data(), Bytes(used));
}

StepExchange::Results StepExchange::fetch() {
  if (!device_.unified()) device_.transfer(host_.data(), memory_.data(), Bytes(2 * sizeof(double)));
  return {host_[0], host_[1]};
}

TensorView StepExchange::all_squared() const {
  return {results_ + 2, Dtype::fp64, 1, static_cast<std::int64_t>(buckets_)};
}

std::span<const std::int32_t> StepExchange::tokens(std::size_t list) const {
  if (device_.unified()) {
    const MicrobatchTokens& m = batch_->microbatches[list / 2];
    return list % 2 == 0 ? m.ids : m.targets;
  }
  return {lists() + list * tokens_, tokens_};
}

const std::int32_t* StepExchange::lists() const {
  return reinterpret_cast<const std::int32_t*>(scalars_ + 1);
}

std::span<const std::int32_t> StepExchange::documents(std::size_t microbatch) const {
  if (device_.unified()) return batch_->microbatches[microbatch].documents;
  if (!apart_) return {};
  return {lists() + (2 * microbatches_ + microbatch) * tokens_, tokens_};
}

}  // namespace sextant
