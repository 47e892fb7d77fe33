// One suite for every communicator. Oracles are computed by each rank alone, from inputs that depend only on
// (seed, rank, element); outputs are poisoned, so what was not written shows.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "runtime/communicators/make_communicator.hpp"

namespace sextant::testing {

inline constexpr NativeStream kNoStream{};
inline constexpr std::int64_t kSizes[] = {0, 1, 7, 129, 4099};

template <class T>
struct Element {
  static constexpr Dtype dtype = std::is_same_v<T, double> ? Dtype::fp64 : Dtype::fp32;
};
template <>
struct Element<std::uint16_t> {  // bf16 bits
  static constexpr Dtype dtype = Dtype::bf16;
};

inline float bf16_value(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Finite values of very different magnitude, so that another order of summation gives other bits.
template <class T>
std::vector<T> random_input(std::uint64_t seed, int rank, std::int64_t count) {
  std::mt19937_64 random(seed * 1000003 + static_cast<std::uint64_t>(rank));
  std::normal_distribution<double> mantissa;
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (auto& v : values) {
    const double x = std::ldexp(mantissa(random), exponent(random));
    if constexpr (std::is_same_v<T, std::uint16_t>)
      v = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16);
    else
      v = static_cast<T>(x);
  }
  return values;
}

// The documented order, written as naively as possible: neighbours by pairs, again and again, an odd last one kept.
template <class A>
A in_pairs(std::vector<A> values, Reduction reduction) {
  while (values.size() > 1) {
    std::vector<A> next;
    for (std::size_t i = 0; i + 1 < values.size(); i += 2)
      next.push_back(reduction == Reduction::sum ? values[i] + values[i + 1]
                                                 : std::max(values[i], values[i + 1]));
    if (values.size() % 2 == 1) next.push_back(values.back());
    values = next;
  }
  return values[0];
}

template <class T>
T reduced(const std::vector<std::vector<T>>& parts, std::size_t i, Reduction reduction) {
  if constexpr (std::is_same_v<T, std::uint16_t>) {
    std::vector<float> values;
    for (const auto& part : parts) values.push_back(bf16_value(part[i]));
    const float acc = in_pairs(values, reduction);
    // Nearest bf16 by trying both neighbours; ties to the even one.
    const auto down = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(acc) >> 16);
    const auto up = static_cast<std::uint16_t>(down + 1);
    const double below = std::abs(double{acc} - bf16_value(down)),
                 above = std::abs(double{bf16_value(up)} - acc);
    return below < above || (below == above && down % 2 == 0) ? down : up;
  } else {
    std::vector<T> values;
    for (const auto& part : parts) values.push_back(part[i]);
    return in_pairs(values, reduction);
  }
}

template <class T>
std::vector<std::vector<T>> all_inputs(std::uint64_t seed, int ranks, std::int64_t count) {
  std::vector<std::vector<T>> parts;
  for (int r = 0; r < ranks; ++r) parts.push_back(random_input<T>(seed, r, count));
  return parts;
}

template <class T>
std::vector<T> poisoned(std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  if (!values.empty()) std::memset(values.data(), 0xa5, values.size() * sizeof(T));
  return values;
}

template <class T>
std::vector<T> reduced_all(std::uint64_t seed, int ranks, std::int64_t count, Reduction reduction) {
  const auto parts = all_inputs<T>(seed, ranks, count);
  std::vector<T> expected(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = reduced(parts, i, reduction);
  return expected;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Uneven shards, one of them empty when there are more than two ranks.
inline std::vector<std::int64_t> uneven(std::int64_t total, int ranks, std::uint64_t seed) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks), 0);
  std::mt19937_64 random(seed);
  const int empty = ranks > 2 ? static_cast<int>(seed % static_cast<std::uint64_t>(ranks)) : -1;
  for (std::int64_t i = 0; i < total; ++i) {
    int r = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
    if (r == empty) r = (r + 1) % ranks;
    ++sizes[static_cast<std::size_t>(r)];
  }
  return sizes;
}

// Backend: static void run(int ranks, RankBody); skips the test when it cannot have so many ranks.
template <class Backend>
class CommunicatorSuite : public ::testing::Test {
 public:
  static void run(const RankBody& body) {
    for (const int ranks : Backend::rank_counts()) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks");
      Backend::run(ranks, body);
    }
  }
};
TYPED_TEST_SUITE_P(CommunicatorSuite);

template <class T>
void check_all_reduce(Communicator& c, Reduction reduction) {
  for (const auto count : kSizes) {
    const auto seed = static_cast<std::uint64_t>(count) + 17;
    const auto in = random_input<T>(seed, c.rank(), count);
    const auto expected = reduced_all<T>(seed, c.size(), count, reduction);
    auto out = poisoned<T>(count);
    c.all_reduce(in.data(), out.data(), count, Element<T>::dtype, reduction, kNoStream);
    EXPECT_TRUE(same_bits(out, expected)) << count;
    EXPECT_TRUE(same_bits(in, random_input<T>(seed, c.rank(), count))) << "the input was written";
    auto in_place = in;
    c.all_reduce(in_place.data(), in_place.data(), count, Element<T>::dtype, reduction, kNoStream);
    EXPECT_TRUE(same_bits(in_place, expected)) << count << " in place";
  }
}

TYPED_TEST_P(CommunicatorSuite, AllReduceAddsNeighboursInPairs) {
  this->run([](Communicator& c) {
    for (const auto reduction : {Reduction::sum, Reduction::max}) {
      check_all_reduce<float>(c, reduction);
      check_all_reduce<double>(c, reduction);
      check_all_reduce<std::uint16_t>(c, reduction);
    }
  });
}

template <class T>
void check_reduce_scatter(Communicator& c) {
  for (const auto total : kSizes)
    for (const bool in_place : {false, true}) {
      const auto seed = static_cast<std::uint64_t>(total) + 5;
      const auto counts = uneven(total, c.size(), seed);
      const auto mine = counts[static_cast<std::size_t>(c.rank())];
      const auto offset = std::accumulate(counts.begin(), counts.begin() + c.rank(), std::int64_t{0});
      auto in = random_input<T>(seed, c.rank(), total);
      const auto untouched = in;
      const auto whole = reduced_all<T>(seed, c.size(), total, Reduction::sum);
      const std::vector<T> expected(whole.begin() + offset, whole.begin() + offset + mine);
      auto out = poisoned<T>(mine);
      T* to = in_place ? in.data() + offset : out.data();
      c.reduce_scatter(in.data(), to, counts, Element<T>::dtype, Reduction::sum, kNoStream);
      if (in_place) {
        out.assign(in.begin() + offset, in.begin() + offset + mine);
        std::copy_n(untouched.begin() + offset, mine, in.begin() + offset);
      }
      EXPECT_TRUE(same_bits(out, expected)) << total << " in_place=" << in_place;
      EXPECT_TRUE(same_bits(in, untouched)) << "written outside the own slice";
    }
}

TYPED_TEST_P(CommunicatorSuite, ReduceScatterGivesEachRankItsSlice) {
  this->run([](Communicator& c) {
    check_reduce_scatter<float>(c);
    check_reduce_scatter<double>(c);
    check_reduce_scatter<std::uint16_t>(c);
  });
}

TYPED_TEST_P(CommunicatorSuite, AllGatherPutsUnevenSlicesInRankOrder) {
  this->run([](Communicator& c) {
    for (const auto total : kSizes)
      for (const bool in_place : {false, true}) {
        const auto bytes = uneven(total, c.size(), 11);
        std::vector<char> expected;
        std::vector<char> mine;
        std::int64_t offset = 0;
        for (int r = 0; r < c.size(); ++r) {
          if (r == c.rank()) offset = std::ssize(expected);
          for (std::int64_t i = 0; i < bytes[static_cast<std::size_t>(r)]; ++i) {
            expected.push_back(static_cast<char>(std::int64_t{31} * r + i));
            if (r == c.rank()) mine.push_back(expected.back());
          }
        }
        auto out = poisoned<char>(total);
        if (in_place) std::copy(mine.begin(), mine.end(), out.begin() + offset);
        c.all_gather(in_place ? out.data() + offset : mine.data(), out.data(), bytes, kNoStream);
        EXPECT_EQ(out, expected) << total << " in_place=" << in_place;
      }
  });
}

// What one rank sends is what the tree of a reduce-scatter and an all-gather must give too.
TYPED_TEST_P(CommunicatorSuite, AllReduceEqualsReduceScatterThenAllGather) {
  this->run([](Communicator& c) {
    const std::int64_t total = 1031;
    auto one = random_input<float>(3, c.rank(), total), two = one;
    c.all_reduce(one.data(), one.data(), total, Dtype::fp32, Reduction::sum, kNoStream);
    auto sizes = uneven(total, c.size(), 8);
    const auto offset = std::accumulate(sizes.begin(), sizes.begin() + c.rank(), std::int64_t{0});
    c.reduce_scatter(two.data(), two.data() + offset, sizes, Dtype::fp32, Reduction::sum, kNoStream);
    for (auto& n : sizes) n *= 4;
    c.all_gather(two.data() + offset, two.data(), sizes, kNoStream);
    EXPECT_TRUE(same_bits(one, two));
  });
}

TYPED_TEST_P(CommunicatorSuite, BroadcastFromEveryRoot) {
  this->run([](Communicator& c) {
    for (int root = 0; root < c.size(); ++root)
      for (const auto count : kSizes) {
        const auto expected = random_input<double>(9, root, count);
        auto data = c.rank() == root ? expected : poisoned<double>(count);
        c.broadcast(data.data(), count * 8, root, kNoStream);
        EXPECT_TRUE(same_bits(data, expected));
      }
  });
}

TYPED_TEST_P(CommunicatorSuite, SendsArriveInOrder) {
  this->run([](Communicator& c) {
    if (c.size() == 1) return;
    const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
    for (const auto count : kSizes) {
      const auto mine = random_input<float>(1, c.rank(), count),
                 expected = random_input<float>(1, previous, count);
      auto got = poisoned<float>(count);
      // A send may wait for its receive: even ranks send first. With an odd ring, rank 0 breaks the tie.
      if (c.rank() % 2 == 0) c.send(mine.data(), count * 4, next, kNoStream);
      c.recv(got.data(), count * 4, previous, kNoStream);
      if (c.rank() % 2 != 0) c.send(mine.data(), count * 4, next, kNoStream);
      EXPECT_TRUE(same_bits(got, expected));
    }
    for (int i = 0; i < 20; ++i) {  // two in flight would swap their contents
      int value = 100 * c.rank() + i;
      if (c.rank() == 0) c.send(&value, 4, 1, kNoStream);
      if (c.rank() == 1) {
        c.recv(&value, 4, 0, kNoStream);
        EXPECT_EQ(value, i);
      }
    }
  });
}

// Groups: odd and even ranks, and all ranks in reversed order (whose sums are then in reversed order too).
TYPED_TEST_P(CommunicatorSuite, GroupsAreIndependentAndOrdered) {
  this->run([](Communicator& c) {
    std::vector<int> same_parity, reversed;
    for (int r = 0; r < c.size(); ++r) {
      if (r % 2 == c.rank() % 2) same_parity.push_back(r);
      reversed.insert(reversed.begin(), r);
    }
    const auto half = c.group(same_parity), back = c.group(reversed);
    EXPECT_EQ(same_parity[static_cast<std::size_t>(half->rank())], c.rank());
    EXPECT_EQ(back->rank(), c.size() - 1 - c.rank());

    const std::int64_t count = 257;
    auto x = random_input<float>(4, c.rank(), count);
    std::vector<std::vector<float>> parts;
    for (const int r : reversed) parts.push_back(random_input<float>(4, r, count));
    back->all_reduce(x.data(), x.data(), count, Dtype::fp32, Reduction::sum, kNoStream);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], reduced(parts, i, Reduction::sum));

    double ones = 1;
    half->all_reduce(&ones, &ones, 1, Dtype::fp64, Reduction::sum, kNoStream);
    EXPECT_EQ(ones, static_cast<double>(same_parity.size()));
    const auto again = half->group(std::vector<int>{half->rank()});  // a group of one
    again->all_reduce(&ones, &ones, 1, Dtype::fp64, Reduction::sum, kNoStream);
    EXPECT_EQ(ones, static_cast<double>(same_parity.size()));
  });
}

// Three lanes of every rank talk at the same time, each on its own communicator.
TYPED_TEST_P(CommunicatorSuite, LanesDoNotDisturbEachOther) {
  this->run([](Communicator& c) {
    std::vector<std::unique_ptr<Communicator>> lanes;
    for (int lane = 0; lane < 3; ++lane) lanes.push_back(everyone(c));
    {
      std::vector<std::jthread> threads;
      for (std::uint64_t lane = 0; lane < lanes.size(); ++lane)
        threads.emplace_back([&, lane] {
          for (std::uint64_t round = 0; round < 20; ++round) {
            const auto seed = 100 * lane + round;
            const auto count = static_cast<std::int64_t>(1 + seed % 97);
            auto x = random_input<float>(seed, c.rank(), count);
            lanes[lane]->all_reduce(x.data(), x.data(), count, Dtype::fp32, Reduction::sum, kNoStream);
            EXPECT_TRUE(same_bits(x, reduced_all<float>(seed, c.size(), count, Reduction::sum)));
          }
        });
    }
    c.barrier(kNoStream);
  });
}

// Negative control of the whole suite: rolled shards, another rank order and a dropped rank are all noticed.
TYPED_TEST_P(CommunicatorSuite, TheOracleNoticesMutants) {
  this->run([](Communicator& c) {
    if (c.size() < 3) return;  // addition of two commutes
    const std::int64_t count = 4099;
    const auto parts = all_inputs<float>(2, c.size(), count);
    auto out = parts[static_cast<std::size_t>(c.rank())];
    c.all_reduce(out.data(), out.data(), count, Dtype::fp32, Reduction::sum, kNoStream);
    const auto differing = [&](const std::vector<std::vector<float>>& mutant) {
      int n = 0;
      for (std::size_t i = 0; i < out.size(); ++i) n += out[i] != reduced(mutant, i, Reduction::sum);
      return n;
    };
    EXPECT_EQ(differing(parts), 0);
    auto turned = parts;  // reversed, pairs would often stay pairs
    std::rotate(turned.begin(), turned.begin() + 1, turned.end());
    EXPECT_GT(differing(turned), 0) << "order of summation does not show";
    EXPECT_GT(differing({parts.begin(), parts.end() - 1}), count / 2);
    auto rolled = parts;
    std::rotate(rolled[0].begin(), rolled[0].begin() + 1, rolled[0].end());
    EXPECT_GT(differing(rolled), count / 2);
  });
}

TYPED_TEST_P(CommunicatorSuite, OverlappingBuffersAreRefused) {
  this->run([](Communicator& c) {
    std::vector<float> x(64);
    EXPECT_THROW(c.all_reduce(x.data(), x.data() + 1, 32, Dtype::fp32, Reduction::sum, kNoStream),
                 std::logic_error);
    const auto bytes = even_split(64, c.size());
    if (c.rank() > 0) {
      EXPECT_THROW(c.all_gather(x.data(), x.data(), bytes, kNoStream), std::logic_error);
    }
    EXPECT_THROW(c.all_gather(x.data(), x.data() + 8, std::vector<std::int64_t>(7, 1), kNoStream),
                 std::logic_error);
  });
}

REGISTER_TYPED_TEST_SUITE_P(CommunicatorSuite, AllReduceAddsNeighboursInPairs,
                            ReduceScatterGivesEachRankItsSlice, AllGatherPutsUnevenSlicesInRankOrder,
                            AllReduceEqualsReduceScatterThenAllGather, BroadcastFromEveryRoot,
                            SendsArriveInOrder, GroupsAreIndependentAndOrdered, LanesDoNotDisturbEachOther,
                            TheOracleNoticesMutants, OverlappingBuffersAreRefused);

}  // namespace sextant::testing
