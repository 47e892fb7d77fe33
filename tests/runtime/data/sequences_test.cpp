// From a data set to the sequences of each step: every window once an epoch, documents kept apart where asked.
#include "runtime/data/sequences.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/data/prepare.hpp"
#include "tests/runtime/data/data_sets.hpp"

namespace sextant {
namespace {

using namespace data_sets;

class Sequences : public DataSets {
 protected:
  std::shared_ptr<const DataSet> make(const std::string& name, std::size_t bytes, unsigned seed,
                                      double held = 0.2) {
    PrepareOptions o;
    o.unit = DocumentUnit::line;
    o.validation_fraction = held;
    o.shard_tokens = 3000;  // windows reach over shards
    prepare({write(name + ".txt", prose(bytes, seed))}, name, o);
    return std::make_shared<const DataSet>(path(name));
  }
  static constexpr SequenceOptions kOptions = {.seq_len = 32, .global_batch = 4, .seed = 9};
  static Ids read(const TokenSource& source, std::int64_t step, int sequence) {
    Ids tokens(kOptions.seq_len + 1);
    source(step, sequence, tokens);
    return tokens;
  }
};

TEST_F(Sequences, AnEpochHasEveryWindowOnce) {
  const auto data = make("a", 30000, 1);
  const Ids all = all_tokens(data->row(DataSplit::train));
  const std::int64_t n = Windows(data->row(DataSplit::train), 32, Packing::across, false).count();
  ASSERT_EQ(n, (static_cast<std::int64_t>(all.size()) - 1) / 32);
  const TokenSource source = training_sequences({{data, 1}}, kOptions);
  std::vector<std::set<Ids>> epochs(2);
  std::vector<Ids> orders(2);
  for (std::int64_t i = 0; i < 2 * n; ++i) {
    const Ids window = read(source, i / 4, static_cast<int>(i % 4));
    epochs[static_cast<std::size_t>(i / n)].insert(window);
    orders[static_cast<std::size_t>(i / n)].push_back(window[0] * 1000 + window[1]);
  }
  std::set<Ids> expected;
  for (std::int64_t w = 0; w < n; ++w) expected.insert(Ids(all.begin() + w * 32, all.begin() + w * 32 + 33));
  EXPECT_EQ(epochs[0], expected);
  EXPECT_EQ(epochs[1], expected);
  EXPECT_NE(orders[0], orders[1]) << "each epoch in an order of its own";
  EXPECT_EQ(read(source, 5, 2), read(training_sequences({{data, 1}}, kOptions), 5, 2)) << "no memory";
}

TEST_F(Sequences, WithinDocumentsNoWindowCrossesTheirEnds) {
  const auto data = make("a", 30000, 2);
  SequenceOptions within = kOptions;
  within.packing = Packing::within;
  const TokenRow& row = data->row(DataSplit::train);
  const Windows windows(row, 32, Packing::within, false);
  std::int64_t targets = 0, in_documents = 0, long_ones = 0;
  row.for_each_document([&](std::int64_t begin, std::int64_t end) {
    in_documents += end - begin - 1;
    long_ones += end - begin > 33;
  });
  ASSERT_GT(long_ones, 0) << "of several windows";
  for (std::int64_t w = 0; w < windows.count(); ++w) {
    Ids tokens(33);
    windows.read(w, tokens);
    const auto fill = std::ranges::find(tokens, ~0);
    EXPECT_TRUE(std::all_of(fill, tokens.end(), [](std::int32_t t) { return t == ~0; }));
    EXPECT_EQ(std::count(tokens.begin() + 1, fill, kBos), 0) << "one document";
    const auto eos = std::find(tokens.begin(), fill, kEos);
    EXPECT_TRUE(eos == fill || eos + 1 == fill) << "nothing behind its end";
    targets += fill - tokens.begin() - 1;
  }
  EXPECT_EQ(targets, in_documents) << "every target once";
  EXPECT_NEAR(windows.filled(), static_cast<double>(targets) / static_cast<double>(windows.count() * 32),
              1e-12);
  EXPECT_NE(read(training_sequences({{data, 1}}, within), 3, 1),
            read(training_sequences({{data, 1}}, kOptions), 3, 1));
}

TEST_F(Sequences, ApartTheirFirstTokensAreMarked) {
  const auto data = make("a", 30000, 2);
  const TokenRow& row = data->row(DataSplit::train);
  ASSERT_GT(data->index().train.size(), 2U) << "windows reach over shards";
  std::set<std::int64_t> begins;
  row.for_each_document([&](std::int64_t begin, std::int64_t) { begins.insert(begin); });
  const Windows across(row, 32, Packing::across, true), apart(row, 32, Packing::apart, true);
  ASSERT_EQ(apart.count(), across.count());
  std::size_t marked = 0;
  for (std::int64_t w = 0; w < apart.count(); ++w) {
    Ids plain(33), tokens(33);
    across.read(w, plain);
    apart.read(w, tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int64_t place = w * 32 + static_cast<std::int64_t>(i);
      if (place < row.tokens() && begins.contains(place)) {
        EXPECT_EQ(tokens[i], ~kBos) << place;
        marked += i < 32;  // the last one is the next window's first
      } else {
        EXPECT_EQ(tokens[i], plain[i]) << place;
      }
    }
  }
  EXPECT_EQ(marked, begins.size()) << "every document";
}

TEST_F(Sequences, HeldOutTextIsSeenOnceAndInOrder) {
  const auto data = make("a", 30000, 3);
  const Ids all = all_tokens(data->row(DataSplit::validation));
  const TokenSource source = validation_sequences(data, kOptions);
  Ids seen;
  const std::int64_t batches = validation_batches(*data, kOptions);
  for (std::int64_t i = 0; i < batches * 4; ++i) {
    const Ids window = read(source, i / 4, static_cast<int>(i % 4));
    for (std::size_t t = 1; t < window.size(); ++t)
      if (window[t] >= 0) seen.push_back(window[t]);
  }
  EXPECT_EQ(seen, Ids(all.begin() + 1, all.end())) << "every target once";
  const Ids behind = read(source, batches, 0);
  EXPECT_TRUE(std::ranges::all_of(behind, [](std::int32_t t) { return t < 0; }));
}

TEST_F(Sequences, MixedByWeight) {
  const auto a = make("a", 30000, 4), b = make("b", 20000, 5);
  const TokenSource source = training_sequences({{a, 3}, {b, 1}}, kOptions);
  std::set<Ids> of_a;
  const Ids all = all_tokens(a->row(DataSplit::train));
  for (std::size_t w = 0; w + 33 <= all.size(); w += 32)
    of_a.insert(
        Ids(all.begin() + static_cast<std::ptrdiff_t>(w), all.begin() + static_cast<std::ptrdiff_t>(w) + 33));
  int from_a = 0;
  for (std::int64_t i = 0; i < 2000; ++i)
    from_a += of_a.contains(read(source, i / 4, static_cast<int>(i % 4)));
  EXPECT_NEAR(from_a / 2000.0, 0.75, 0.04);
  EXPECT_NE(data_identity({{a, 3}, {b, 1}}, kOptions), data_identity({{a, 1}, {b, 1}}, kOptions));
}

TEST_F(Sequences, TooShortASetIsRefused) {
  const auto data = make("a", 300, 6, 0.0);
  SequenceOptions long_ones = kOptions;
  long_ones.seq_len = 100000;
  EXPECT_THROW(training_sequences({{data, 1}}, long_ones), ConfigError);
  EXPECT_THROW(validation_sequences(data, kOptions), ConfigError) << "nothing was held out";
}

}  // namespace
}  // namespace sextant
