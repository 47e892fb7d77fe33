// The sequences of training steps, out of data sets. A split is cut into windows of seq_len tokens and one more, the last
// target; an epoch takes every window once, in an order of its own. Sample n of a run (n = step x global batch + sequence)
// is the same in any layout. By the rules of runtime/execution/step_batch.hpp, what fills up is ~0: token 0, without a loss; with
// Packing::apart a document's first token t is ~t, as no token before it may predict it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/data_set.hpp"

namespace sextant {

enum class Packing : std::uint8_t {
  across,  // the split is one row: documents share windows, and attention reaches over their ends (GPT-3, LLaMA)
  apart,  // they share windows, and attention does not reach over their ends (Llama 3, Dubey et al. 2024, 3.2)
  within,  // a window holds one document or a part of it and is filled up: no attention across, at the price of the fill
};
inline constexpr std::array<std::string_view, 3> kPackingNames = {"across", "apart", "within"};

struct WeightedData {
  std::shared_ptr<const DataSet> data;
  double weight = 1;
};

// Sequence `sequence` of step `step`, tokens [0, seq_len].
using TokenSource = std::function<void(std::int64_t step, int sequence, std::span<std::int32_t>)>;

struct SequenceOptions {
  int seq_len = 0, global_batch = 0;
  std::uint64_t seed = 1;
  Packing packing = Packing::across;
};

// The windows of a split.
class Windows {
 public:
  Windows(const TokenRow&, int seq_len, Packing, bool last_one_too);
  std::int64_t count() const;
  double filled() const;                                              // share of the targets that are tokens
  void read(std::int64_t window, std::span<std::int32_t> out) const;  // a window beyond the last has no loss

 private:
  const TokenRow& row_;
  std::int64_t seq_len_, count_ = 0, targets_ = 0;
  Packing packing_;
  std::vector<std::int64_t> begins_, ends_, first_window_;  // of documents, when windows do not cross them
};

// Throws ConfigError when a set is shorter than a sequence.
TokenSource training_sequences(std::vector<WeightedData>, const SequenceOptions&);

// Every held-out token once, in order; behind the last, sequences without a loss.
TokenSource validation_sequences(std::shared_ptr<const DataSet>, const SequenceOptions&);
std::int64_t validation_batches(const DataSet&, const SequenceOptions&);  // until all are seen

// For a checkpoint: what must be the same for a run to go on with the same data.
std::string data_identity(const std::vector<WeightedData>&, const SequenceOptions&);

}  // namespace sextant
