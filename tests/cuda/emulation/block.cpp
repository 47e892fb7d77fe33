#include "tests/cuda/emulation/block.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <boost/context/fiber.hpp>

#include "tests/cuda/emulation/sanitizers.hpp"

namespace emulation {
namespace {

constexpr std::size_t kStack = std::size_t{192} << 10;

// Stacks that are never given back, with their extents for the sanitizer.
struct Stack {
  boost::context::stack_context context;
  Stack() {
    context.size = kStack;
    context.sp = static_cast<char*>(std::malloc(kStack)) + kStack;
  }
  const void* bottom() const { return static_cast<const char*>(context.sp) - context.size; }
};
struct KeepStack {
  void deallocate(boost::context::stack_context&) noexcept {}
};

enum class State : std::uint8_t { ready, in_barrier, in_warp, ended };

struct Fiber {
  Thread thread;
  State state = State::ended;
  unsigned warp = 0, line = 0, mask = 0;  // where it waits, and with whom
  WarpCall call = {};
  std::uint64_t answer = 0;
  std::exception_ptr error;
  Stack stack;
  FiberIdentity identity;
  boost::context::fiber inside, outside;
};

std::string place(const Fiber& f) {
  return "thread " + std::to_string(f.thread.thread.x) + "," + std::to_string(f.thread.thread.y) +
         " of block " + std::to_string(f.thread.block.x) + "," + std::to_string(f.thread.block.y) + "," +
         std::to_string(f.thread.block.z) + ", line " + std::to_string(f.line);
}

class Block;
Block* running = nullptr;
Fiber* current = nullptr;

// The fibers of a block, used for one block after another.
class Block {
 public:
  void run(const Launch& launch, uint3 index, const std::function<void()>& kernel) {
    running = this;
    kernel_ = &kernel;
    launch_ = &launch;
    const std::size_t n = std::size_t{launch.block.x} * launch.block.y * launch.block.z;
    while (fibers_.size() < n) add();
    warps_.assign((n + 31) / 32, {});
    ready_.clear();
    ready_.reserve(n);
    shared_.reserve(16);
    for (std::size_t i = 0; i < n; ++i) {
      Fiber& f = *fibers_[i];
      const auto linear = static_cast<unsigned>(i);
      f.thread = {{linear % launch.block.x, linear / launch.block.x % launch.block.y,
                   linear / launch.block.x / launch.block.y},
                  index,
                  linear % 32,
                  &launch};
      f.warp = linear / 32;
      make_ready(f);
    }
    alive_ = threads_ = n;
    in_barrier_ = 0;
    vote_ = false;
    happens_before(this);
    while (alive_ > 0) {
      if (ready_.empty()) throw Fault("threads wait for ever: " + waiting());
      const std::size_t chosen = chance() % ready_.size();
      std::swap(ready_[chosen], ready_.back());
      Fiber& f = *ready_.back();
      ready_.pop_back();
      resume(f);
      if (f.error) std::rethrow_exception(f.error);
    }
    for (auto& [declaration, memory] : shared_) give_shared(memory.data, memory.bytes);
    shared_.clear();
  }

  bool barrier(unsigned line, bool vote) {
    Fiber& f = *current;
    f.line = line;
    f.state = State::in_barrier;
    vote_ = vote_ || vote;
    ++in_barrier_;
    happens_before(&in_barrier_);
    if (!open_barrier()) leave(f);
    happens_after(&in_barrier_);
    return f.answer != 0;
  }

  std::uint64_t warp(unsigned mask, const WarpCall& call) {
    Fiber& f = *current;
    f.line = call.line;
    f.mask = mask;
    f.call = call;
    f.state = State::in_warp;
    if ((mask >> f.thread.lane & 1) == 0) throw Fault("a lane is not of its own mask: " + place(f));
    Warp& w = warps_[f.warp];
    w.arrived |= 1u << f.thread.lane;
    if ((w.arrived & mask) == mask)
      answer(f.warp, mask);
    else
      leave(f);
    return f.answer;
  }

  void* shared(const void* declaration, std::size_t bytes) {
    for (const auto& [known, memory] : shared_)
      if (known == declaration) return memory.data;
    shared_.push_back({declaration, {take_shared(bytes), bytes}});
    return shared_.back().second.data;
  }
  void* dynamic_shared() { return shared(nullptr, launch_->shared_bytes); }

 private:
  struct Warp {
    unsigned arrived = 0;
  };
  struct Memory {
    void* data;
    std::size_t bytes;
  };

  void add() {
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber& f = *fibers_.back();
    f.inside = boost::context::fiber(
        std::allocator_arg, boost::context::preallocated(f.stack.context.sp, kStack, f.stack.context),
        KeepStack{}, [this, &f](boost::context::fiber&& outside) {
          f.outside = std::move(outside);
          entered(f.identity);
          for (;;) {
            try {
              happens_after(this);
              (*kernel_)();
            } catch (...) {
              f.error = std::current_exception();
            }
            f.state = State::ended;
            --alive_;
            happens_before(this);
            open_barrier();
            leave(f);
          }
          return std::move(f.outside);
        });
  }
  void make_ready(Fiber& f) {
    f.state = State::ready;
    ready_.push_back(&f);
  }
  void resume(Fiber& f) {
    current = &f;
    switch_in(f.identity, f.stack.bottom(), kStack);
    f.inside = std::move(f.inside).resume();
    switched_out(f.identity);
    current = nullptr;
  }
  void leave(Fiber& f) {
    switch_out(f.identity);
    f.outside = std::move(f.outside).resume();
    entered(f.identity);
  }

  // Once every thread that has not ended is there. A thread that ends may be the one that the others waited for.
  bool open_barrier() {
    if (in_barrier_ == 0 || in_barrier_ < alive_) return false;
    const Fiber* first = nullptr;
    const bool vote = vote_;
    in_barrier_ = 0;
    vote_ = false;
    for (std::size_t i = 0; i < threads_; ++i)
      if (Fiber* f = fibers_[i].get(); f->state == State::in_barrier) {
        if (!first) first = f;
        if (f->line != first->line)
          throw Fault("threads are at different barriers: " + place(*first) + " and " + place(*f));
        f->answer = vote;
        if (f == current)
          f->state = State::ready;
        else
          make_ready(*f);
      }
    return true;
  }

  void answer(unsigned warp, unsigned mask) {
    const WarpCall& call = current->call;
    std::array<Fiber*, 32> lanes{};
    std::uint64_t votes = 0;
    std::int64_t most = INT64_MIN, least = INT64_MAX;
    for (unsigned lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      Fiber* f = lanes[lane] = fibers_[warp * 32 + lane].get();
      if (f->call.kind != call.kind || f->line != call.line || f->mask != mask)
        throw Fault("lanes of a warp make different calls: " + place(*current) + " and " + place(*f));
      votes |= static_cast<std::uint64_t>(f->call.value != 0) << lane;
      most = std::max(most, static_cast<std::int64_t>(f->call.value));
      least = std::min(least, static_cast<std::int64_t>(f->call.value));
    }
    warps_[warp].arrived &= ~mask;
    for (Fiber* f : lanes) {
      if (!f) continue;
      switch (call.kind) {
        case WarpCall::shuffle:
          if (f->call.from >= 32 || !lanes[f->call.from])
            throw Fault("the value of a lane outside of the mask: " + place(*f));
          f->answer = lanes[f->call.from]->call.value;
          break;
        case WarpCall::ballot:
          f->answer = votes;
          break;
        case WarpCall::maximum:
          f->answer = static_cast<std::uint64_t>(most);
          break;
        case WarpCall::minimum:
          f->answer = static_cast<std::uint64_t>(least);
          break;
      }
      if (f == current)
        f->state = State::ready;
      else
        make_ready(*f);
    }
  }

  std::string waiting() const {
    std::string text;
    for (const auto& f : fibers_)
      if (f->state == State::in_barrier || f->state == State::in_warp) {
        text += place(*f) + (f->state == State::in_barrier ? " at a barrier; " : " in a call of its warp; ");
        if (text.size() > 400) break;
      }
    return text;
  }

  const std::function<void()>* kernel_ = nullptr;
  const Launch* launch_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> ready_;
  std::vector<Warp> warps_;
  std::vector<std::pair<const void*, Memory>> shared_;
  std::size_t threads_ = 0, alive_ = 0, in_barrier_ = 0;
  bool vote_ = false;
};

}  // namespace

Thread& self() { return current->thread; }
bool barrier(unsigned line, bool vote) { return running->barrier(line, vote); }
std::uint64_t warp(unsigned mask, const WarpCall& call) { return running->warp(mask, call); }
void* dynamic_shared_bytes() { return running->dynamic_shared(); }
void* shared_bytes(const void* declaration, std::size_t bytes) { return running->shared(declaration, bytes); }

std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* given = std::getenv("SEXTANT_EMULATION_SEED");
    return given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  }();
  return value;
}
std::uint64_t chance() {
  static thread_local std::minstd_rand engine(static_cast<std::minstd_rand::result_type>(seed()));
  return engine();
}

void run_grid(const Launch& launch, const std::function<void()>& kernel) {
  // Neighbours in time are different fibers: nothing orders the blocks of a grid.
  static auto* teams = new std::array<std::unique_ptr<Block>, 2>;
  const std::size_t n = std::size_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::minstd_rand(static_cast<unsigned>(chance())));
  for (std::size_t i = 0; i < n; ++i) {
    auto& team = (*teams)[i % teams->size()];
    if (!team) team = std::make_unique<Block>();
    const auto linear = order[i];
    const uint3 index{static_cast<unsigned>(linear % launch.grid.x),
                      static_cast<unsigned>(linear / launch.grid.x % launch.grid.y),
                      static_cast<unsigned>(linear / launch.grid.x / launch.grid.y)};
    try {
      team->run(launch, index, kernel);
    } catch (...) {
      static_cast<void>(team.release());  // its fibers stand amid their kernel
      throw;
    }
  }
  for (const auto& team : *teams) happens_after(team.get());
}

}  // namespace emulation
