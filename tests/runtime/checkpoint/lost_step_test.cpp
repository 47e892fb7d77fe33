// System: ranks of a small run of which one is gone at any of its exchanges, or between two. Expectation: the others have the
// state between two steps in common, to the bit that of an undisturbed run, wherever in a step they were.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "runtime/checkpoint/state_move.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "tests/runtime/trial.hpp"
#include "tests/support/whole_grid.hpp"

namespace sextant::testing {
namespace {

constexpr int kSteps = 3, kFinishedBehind = 1;  // an update that is made at once, as for a checkpoint
constexpr int kTried = 40, kLast = 12;          // calls, spread and at the end; nightly all

// Fails at one of this rank's calls, on whichever lane, and takes the others' calls with it.
class Failing final : public Communicator {
 public:
  struct Calls {
    std::atomic<int> made{0};
    int fails = -1;
  };
  Failing(std::unique_ptr<Communicator> inner, std::shared_ptr<Calls> calls)
      : inner_(std::move(inner)), calls_(std::move(calls)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_reduce(const void* in, void* out, std::int64_t n, Dtype d, Reduction r, NativeStream s) override {
    count();
    inner_->all_reduce(in, out, n, d, r, s);
  }
  void reduce_scatter(const void* in, void* out, std::span<const std::int64_t> n, Dtype d, Reduction r,
                      NativeStream s) override {
    count();
    inner_->reduce_scatter(in, out, n, d, r, s);
  }
  void all_gather(const void* in, void* out, std::span<const std::int64_t> n, NativeStream s) override {
    count();
    inner_->all_gather(in, out, n, s);
  }
  void broadcast(void* data, std::int64_t n, int root, NativeStream s) override {
    count();
    inner_->broadcast(data, n, root, s);
  }
  void send(const void* data, std::int64_t n, int peer, NativeStream s) override {
    count();
    inner_->send(data, n, peer, s);
  }
  void recv(void* data, std::int64_t n, int peer, NativeStream s) override {
    count();
    inner_->recv(data, n, peer, s);
  }
  void barrier(NativeStream s) override {
    count();
    inner_->barrier(s);
  }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    return std::make_unique<Failing>(inner_->group(ranks), calls_);
  }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }

 private:
  void count() {
    if (calls_->made++ != calls_->fails) return;
    inner_->abort("a rank is lost");
    throw RankLost("this one");
  }
  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<Calls> calls_;
};

using Bytes3 = std::vector<std::byte>;
Bytes3 bytes_of(const HeldState& held) {
  Bytes3 all;
  for (const HeldState::Piece& piece : held.pieces())
    for (const auto& field : piece.data) all.insert(all.end(), field.begin(), field.end());
  return all;
}

struct Ended {
  std::int64_t step = -1;       // behind which the ranks that are left have their state
  std::vector<Bytes3> state;    // of each rank; empty of the lost one
  std::set<std::int64_t> were;  // steps that ranks had done, before they agreed
  int calls = 0;                // of the rank that is lost
};

// `fails`: at which of its calls rank `lost` goes; -1: never.
Ended run_until(const std::string& key, std::int64_t steps, int lost, int fails, bool completes = true) {
  Trial trial(key);
  const int ranks = trial.graph.plan.world();
  const auto calls = std::make_shared<Failing::Calls>();
  calls->fails = fails;
  auto world = make_local_world(ranks);
  world[static_cast<std::size_t>(lost)] =
      std::make_unique<Failing>(std::move(world[static_cast<std::size_t>(lost)]), calls);
  Ended ended;
  ended.state.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  std::int64_t least = steps;
  std::barrier all(ranks);
  run_ranks(world, [&](Communicator& c) {
    const auto device = make_cpu_device({});
    RankOptions options;
    options.outlives_ranks = true;
    RankTrainer trainer(trial.graph, trial.stack, *device, cpu_reference_kernels(), c, trial.run.optimizer,
                        trial.run.sequences, std::move(options));
    trainer.initialise(trial.run.weights);
    try {
      for (std::int64_t s = 0; s < steps; ++s) {
        trainer.step();
        if (s == kFinishedBehind) trainer.finish();
      }
      trainer.finish();
    } catch (const Aborted&) {
    }
    const bool left = fails < 0 || c.rank() != lost;
    if (left) {
      const std::lock_guard lock(mutex);
      least = std::min(least, trainer.recoverable().last);
      ended.were.insert(trainer.clock().step);
    }
    all.arrive_and_wait();
    if (!left) return;
    if (completes) trainer.settle(least);
    ended.state[static_cast<std::size_t>(c.rank())] =
        bytes_of(HeldState(trainer.state(), *device, trainer.clock()));
    EXPECT_EQ(trainer.clock().step, completes ? least : trainer.clock().step);
  });
  ended.step = least;
  ended.calls = calls->made;
  return ended;
}

class LostStep : public ::testing::TestWithParam<const char*> {};

TEST_P(LostStep, TheOthersHaveOneStateInCommon) {
  constexpr int kLost = 1;
  std::vector<Ended> undisturbed;
  for (std::int64_t steps = 0; steps <= kSteps; ++steps)
    undisturbed.push_back(run_until(GetParam(), steps, kLost, -1));
  ASSERT_NE(undisturbed[1].state, undisturbed[2].state) << "control: something is learnt";
  std::set<std::int64_t> steps;
  int apart = 0, torn = 0;
  const auto compare = [&](const Ended& ended) {
    int differ = 0;
    for (std::size_t rank = 0; rank < ended.state.size(); ++rank)
      if (rank != kLost)
        differ += ended.state[rank] != undisturbed[static_cast<std::size_t>(ended.step)].state[rank];
    return differ;
  };
  const int calls = undisturbed.back().calls;
  const int stride = whole_grid() ? 1 : std::max(1, calls / kTried);
  for (int call = 0; call < calls; ++call) {
    if (call % stride != 0 && call + kLast < calls) continue;
    const Ended ended = run_until(GetParam(), kSteps, kLost, call);
    ASSERT_EQ(compare(ended), 0) << "lost at call " << call << ", behind step " << ended.step;
    steps.insert(ended.step);
    apart += ended.were.size() > 1;
    torn += compare(run_until(GetParam(), kSteps, kLost, call, false)) > 0;
  }
  EXPECT_EQ(steps, (std::set<std::int64_t>{0, 1, 2, 3}));
  if (stride == 1) {
    EXPECT_GT(torn, 0) << "control: as they were, ranks have no state in common";
  }
  RecordProperty("calls", calls);
  RecordProperty("apart", apart);
  RecordProperty("torn", torn);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LostStep,
                         ::testing::Values("dp4.z0.mbs2", "dp4.z1.mbs2.b4K", "dp4.z3.sd2.mbs2",
                                           "tp2.dp2.z1.mbs2", "pp2.dp2.z0.mbs1", "dp2.z1.mbs2.oo50"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace sextant::testing
