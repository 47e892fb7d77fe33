#include "runtime/data/sequences.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.hpp"
#include "runtime/data/shuffle.hpp"

namespace sextant {
namespace {

// Window [first, first + seq_len] of a row, as far as there are tokens; the rest carries no loss.
void read_window(const TokenRow& row, std::int64_t first, Packing packing, std::span<std::int32_t> out) {
  const std::int64_t there =
      std::clamp<std::int64_t>(row.tokens() - first, 0, static_cast<std::int64_t>(out.size()));
  if (there > 0) row.read(first, out.first(static_cast<std::size_t>(there)));
  std::fill(out.begin() + there, out.end(), ~0);
  if (packing == Packing::within && there > 0)
    row.documents_in(first, first + there, [&](std::int64_t begin) {
      std::int32_t& token = out[static_cast<std::size_t>(begin - first)];
      token = ~token;
    });
}

}  // namespace

std::int64_t windows(const TokenRow& row, int seq_len) {
  return std::max<std::int64_t>(0, (row.tokens() - 1) / seq_len);
}

TokenSource training_sequences(std::vector<WeightedData> sets, const SequenceOptions& o) {
  std::vector<double> weights;
  for (const WeightedData& s : sets) {
    weights.push_back(s.weight);
    if (windows(s.data->row(DataSplit::train), o.seq_len) == 0)
      throw ConfigError(Problem{s.data->folder().string(), "train",
                                fmt::format("{} tokens", s.data->index().tokens(DataSplit::train)),
                                fmt::format("more than one sequence of {} tokens", o.seq_len),
                                "add text, or plan with a shorter --seq-len"});
  }
  return [sets = std::move(sets), mixture = Mixture(weights, scrambled(o.seed, 0)), o](
             std::int64_t step, int sequence, std::span<std::int32_t> out) {
    const Mixture::Place place = mixture.at(step * o.global_batch + sequence);
    const TokenRow& row = sets[place.part].data->row(DataSplit::train);
    const std::int64_t n = windows(row, o.seq_len);
    const auto epoch = static_cast<std::uint64_t>(place.index / n);
    const std::uint64_t order = scrambled(scrambled(o.seed, 1 + place.part), epoch);
    read_window(row, permuted(place.index % n, n, order) * o.seq_len, o.packing, out);
  };
}

TokenSource validation_sequences(std::shared_ptr<const DataSet> data, const SequenceOptions& o) {
  if (data->row(DataSplit::validation).tokens() < 2)
    throw ConfigError(Problem{data->folder().string(), "validation", "no held-out text", "a validation split",
                              "make it with 'sextant data --validation 0.05', or leave --eval-every out"});
  return [data = std::move(data), o](std::int64_t step, int sequence, std::span<std::int32_t> out) {
    read_window(data->row(DataSplit::validation), (step * o.global_batch + sequence) * o.seq_len, o.packing,
                out);
  };
}

std::int64_t validation_batches(const DataSet& data, const SequenceOptions& o) {
  const std::int64_t per_batch = std::int64_t{o.seq_len} * o.global_batch;
  return std::max<std::int64_t>(0, (data.row(DataSplit::validation).tokens() - 2 + per_batch) / per_batch);
}

std::string data_identity(const std::vector<WeightedData>& sets, const SequenceOptions& o) {
  std::string text = fmt::format("seed {} seq_len {} packing {}", o.seed, o.seq_len,
                                 kPackingNames[static_cast<std::size_t>(o.packing)]);
  for (const WeightedData& s : sets) text += fmt::format(" {}:{}", s.data->index().digest(), s.weight);
  return text;
}

}  // namespace sextant
