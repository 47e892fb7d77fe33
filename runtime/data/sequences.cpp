#include "runtime/data/sequences.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "runtime/data/shuffle.hpp"

namespace sextant {

Windows::Windows(const TokenRow& row, int seq_len, Packing packing, bool last_one_too)
    : row_(row), seq_len_(seq_len), packing_(packing) {
  if (packing != Packing::within) {
    targets_ = std::max<std::int64_t>(0, row.tokens() - 1);
    count_ = (targets_ + (last_one_too ? seq_len_ - 1 : 0)) / seq_len_;
    if (!last_one_too) targets_ = count_ * seq_len_;
    return;
  }
  row.for_each_document([&](std::int64_t begin, std::int64_t end) {
    if (end - begin < 2) return;
    begins_.push_back(begin);
    ends_.push_back(end);
    first_window_.push_back(count_);
    count_ += (end - begin - 1 + seq_len_ - 1) / seq_len_;
    targets_ += end - begin - 1;
  });
}

std::int64_t Windows::count() const { return count_; }

double Windows::filled() const {
  return count_ == 0 ? 0 : static_cast<double>(targets_) / static_cast<double>(count_ * seq_len_);
}

void Windows::read(std::int64_t window, std::span<std::int32_t> out) const {
  std::int64_t first = window * seq_len_, end = row_.tokens();
  if (window >= count_) {
    first = end;
  } else if (packing_ == Packing::within) {
    const auto document = static_cast<std::size_t>(
        std::upper_bound(first_window_.begin(), first_window_.end(), window) - first_window_.begin() - 1);
    first = begins_[document] + (window - first_window_[document]) * seq_len_;
    end = ends_[document];
  }
  const std::int64_t there = std::clamp<std::int64_t>(end - first, 0, static_cast<std::int64_t>(out.size()));
  if (there > 0) row_.read(first, out.first(static_cast<std::size_t>(there)));
  std::fill(out.begin() + there, out.end(), ~0);
  if (packing_ == Packing::apart && there > 0)
    row_.documents_begun_in(first, first + there, [&](std::int64_t begin) {
      auto& token = out[static_cast<std::size_t>(begin - first)];
      token = ~token;
    });
}

TokenSource training_sequences(std::vector<WeightedData> sets, const SequenceOptions& o) {
  std::vector<double> weights;
  const auto windows = std::make_shared<std::vector<Windows>>();  // every rank has a copy of the source
  for (const WeightedData& s : sets) {
    weights.push_back(s.weight);
    windows->emplace_back(s.data->row(DataSplit::train), o.seq_len, o.packing, false);
    if (windows->back().count() == 0)
      throw ConfigError(Problem{s.data->folder().string(), "train",
                                fmt::format("{} tokens", s.data->index().tokens(DataSplit::train)),
                                fmt::format("more than one sequence of {} tokens", o.seq_len),
                                "add text, or plan with a shorter --seq-len"});
  }
  return [sets = std::move(sets), windows, mixture = Mixture(weights, scrambled(o.seed, 0)), o](
             std::int64_t step, int sequence, std::span<std::int32_t> out) {
    const Mixture::Place place = mixture.at(step * o.global_batch + sequence);
    const std::int64_t n = (*windows)[place.part].count();
    const auto epoch = static_cast<std::uint64_t>(place.index / n);
    const std::uint64_t order = scrambled(scrambled(o.seed, 1 + place.part), epoch);
    (*windows)[place.part].read(permuted(place.index % n, n, order), out);
  };
}

TokenSource validation_sequences(std::shared_ptr<const DataSet> data, const SequenceOptions& o) {
  const auto windows =
      std::make_shared<const Windows>(data->row(DataSplit::validation), o.seq_len, o.packing, true);
  if (windows->count() == 0)
    throw ConfigError(Problem{data->folder().string(), "validation", "no held-out text", "a validation split",
                              "make it with 'sextant data --validation 0.05', or leave --eval-every out"});
  return [data = std::move(data), windows, o](std::int64_t step, int sequence, std::span<std::int32_t> out) {
    windows->read(step * o.global_batch + sequence, out);
  };
}

std::int64_t validation_batches(const DataSet& data, const SequenceOptions& o) {
  const Windows windows(data.row(DataSplit::validation), o.seq_len, o.packing, true);
  return (windows.count() + o.global_batch - 1) / o.global_batch;
}

std::string data_identity(const std::vector<WeightedData>& sets, const SequenceOptions& o) {
  std::string text = fmt::format("seed {} seq_len {} packing {}", o.seed, o.seq_len,
                                 kPackingNames[static_cast<std::size_t>(o.packing)]);
  for (const WeightedData& s : sets) text += fmt::format(" {}:{}", s.data->index().digest(), s.weight);
  return text;
}

}  // namespace sextant
