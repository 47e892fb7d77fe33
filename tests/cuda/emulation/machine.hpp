// The emulated machine itself, for gpu.cpp, runtime_api.cpp and libraries: its streams, its memory and its two threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/gpu.hpp"

// What CUDA's opaque pointers point to.
struct CUevent_st {
  int device = 0;
  bool times = true;
  std::shared_ptr<emulation::Mark> mark = {};
};

namespace emulation {

struct Entry {
  std::function<void()> work = {};
  std::shared_ptr<Mark> reaches = {}, waits_for = {};
  bool on_host = false;
  std::optional<Activity> activity = {};
};

}  // namespace emulation

struct CUstream_st {
  int device = 0;
  std::deque<emulation::Entry> queue = {};
  bool busy = false;
  double rank = 0;  // the highest that may run does
  std::optional<std::vector<emulation::Entry>> captured = {};
  bool spoilt = false;  // the capture
};
struct CUgraph_st {
  std::vector<emulation::Entry> entries;
};
struct CUgraphExec_st {
  std::vector<emulation::Entry> entries;
};

namespace emulation {

inline constexpr std::size_t kShared = 48 << 10, kMostShared = 227 << 10;
inline constexpr std::int64_t kMemory = std::int64_t{4} << 30;

// Of the calling thread.
inline thread_local int device_of_thread = -1;  // none chosen, where CUDA would take the first
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local CUstream_st* capturing = nullptr;

class Machine {
 public:
  Machine() {
    std::thread([this] { work(); }).detach();
    std::thread([this] { serve_host(); }).detach();
  }

  cudaError_t fail(cudaError_t error, const std::string& why) {
    last_error = error;
    if (error == cudaErrorNotReady) return error;
    const std::lock_guard lock(mutex_);
    reports_.push_back(why);
    return error;
  }

  // --- streams -------------------------------------------------------------------------------------------

  cudaStream_t make_stream() {
    auto* s = new CUstream_st{.device = device_of_thread};
    const std::lock_guard lock(mutex_);
    streams_.push_back(s);
    return s;
  }
  void destroy_stream(cudaStream_t s) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return s->queue.empty() && !s->busy; });
    std::erase(streams_, s);
    delete s;
  }
  bool is_stream(cudaStream_t s) {
    const std::lock_guard lock(mutex_);
    return std::ranges::find(streams_, s) != streams_.end();
  }
  void push(cudaStream_t s, Entry entry) {
    const std::lock_guard lock(mutex_);
    if (s->captured) {
      s->captured->push_back(std::move(entry));
      return;
    }
    s->queue.push_back(std::move(entry));
    wake_gpu();
  }
  void push(cudaStream_t s, const std::vector<Entry>& entries) {
    const std::lock_guard lock(mutex_);
    s->queue.insert(s->queue.end(), entries.begin(), entries.end());
    wake_gpu();
  }
  void drain(cudaStream_t s) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return s->queue.empty() && !s->busy; });
  }
  void drain_device(int device) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::ranges::all_of(
          streams_, [&](CUstream_st* s) { return s->device != device || (s->queue.empty() && !s->busy); });
    });
  }
  void wait(const std::shared_ptr<Mark>& mark) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !mark || mark->reached; });
  }
  void reach(const std::shared_ptr<Mark>& mark) {
    const std::lock_guard lock(mutex_);
    mark->reached = true;
    changed_.notify_all();
    wake_gpu();
  }
  bool reached(const std::shared_ptr<Mark>& mark) {
    const std::lock_guard lock(mutex_);
    return !mark || mark->reached;
  }

  // --- memory --------------------------------------------------------------------------------------------

  void* allocate(std::size_t bytes, bool on_device) {
    const std::lock_guard lock(mutex_);
    if (on_device && used_ + static_cast<std::int64_t>(bytes) > kMemory) return nullptr;
    void* data = take_memory(bytes);
    if (!data) return nullptr;
    std::memset(data, 0xff, bytes);
    if (on_device) {
      used_ += static_cast<std::int64_t>(bytes);
      most_used_ = std::max(most_used_, used_);
    }
    blocks_[static_cast<std::byte*>(data)] = {bytes, on_device};
    ++counts_.allocations;
    return data;
  }
  bool release(void* data) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(static_cast<std::byte*>(data));
    if (block == blocks_.end()) return false;
    if (block->second.on_device) used_ -= static_cast<std::int64_t>(block->second.bytes);
    give_memory(data, block->second.bytes);
    blocks_.erase(block);
    return true;
  }
  std::int64_t take_most_bytes() {
    const std::lock_guard lock(mutex_);
    const std::int64_t beyond = most_used_ - used_before_;
    most_used_ = used_before_ = used_;
    return beyond;
  }
  std::int64_t free_bytes() {
    const std::lock_guard lock(mutex_);
    return kMemory - used_;
  }
  // Nothing when it is ordinary memory of the host; otherwise whether these bytes lie within one block.
  std::optional<bool> inside(const void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto block = blocks_.upper_bound(const_cast<std::byte*>(static_cast<const std::byte*>(data)));
    if (block == blocks_.begin()) return {};
    --block;
    const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) - block->first);
    if (offset >= std::max<std::size_t>(block->second.bytes, 1)) return {};
    return offset + bytes <= block->second.bytes;
  }

  // --- what tests ask ------------------------------------------------------------------------------------

  void count(int Counts::*what) {
    const std::lock_guard lock(mutex_);
    ++(counts_.*what);
  }
  Counts take_counts() {
    const std::lock_guard lock(mutex_);
    return std::exchange(counts_, {});
  }
  std::vector<std::string> take_reports() {
    const std::lock_guard lock(mutex_);
    return std::exchange(reports_, {});
  }
  void break_down() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
  }
  bool broken() {
    const std::lock_guard lock(mutex_);
    return broken_;
  }
  void set_profiler(Profiler profiler) {
    const std::lock_guard lock(mutex_);
    profiler_ = std::make_shared<const Profiler>(std::move(profiler));
  }
  std::shared_ptr<const Profiler> profiler() {
    const std::lock_guard lock(mutex_);
    return profiler_;
  }
  Activity activity(Activity::Kind kind) {
    const std::uint64_t correlation = ++correlations_;
    if (const auto p = profiler(); p && p->called) p->called(correlation);
    return {kind, correlation, 0, 0};
  }
  std::map<const void*, std::size_t> shared_limits;  // under shared_mutex
  std::mutex shared_mutex;

 private:
  // Large blocks are kept for whoever asks for about as many bytes: a page that the system has to clear costs more than all else.
  // Not where a sanitizer watches: there what is freed stays forbidden.
#ifdef SEXTANT_EMULATION_NOTHING
  static constexpr std::size_t kKept = std::size_t{1} << 20;
#else
  static constexpr std::size_t kKept = SIZE_MAX;
#endif
  static std::size_t room_for(std::size_t bytes) { return bytes < kKept ? bytes : std::bit_ceil(bytes); }
  void* take_memory(std::size_t bytes) {
    if (const auto kept = kept_.find(room_for(bytes)); kept != kept_.end()) {
      void* const data = kept->second;
      kept_.erase(kept);
      return data;
    }
    void* data = nullptr;
    return posix_memalign(&data, 256, room_for(bytes)) == 0 ? data : nullptr;
  }
  void give_memory(void* data, std::size_t bytes) {
    if (bytes < kKept)
      std::free(data);
    else
      kept_.emplace(room_for(bytes), data);
  }

  // The stream to run, or nullptr. The order among streams changes now and then.
  CUstream_st* choose() {
    if (chance() % 16 == 0)
      for (CUstream_st* s : streams_) s->rank = static_cast<double>(chance());
    CUstream_st* best = nullptr;
    for (CUstream_st* s : streams_) {
      if (s->busy || s->queue.empty()) continue;
      const Entry& e = s->queue.front();
      if (e.waits_for && !e.waits_for->reached) continue;
      if (!best || s->rank > best->rank) best = s;
    }
    return best;
  }
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      CUstream_st* s = choose();
      for (; !s; s = choose()) {
        idle_ = true;
        entered_.wait(lock);
        idle_ = false;
      }
      Entry entry = std::move(s->queue.front());
      s->queue.pop_front();
      s->busy = true;
      if (entry.on_host) {
        host_work_.emplace_back(s, std::move(entry));
        of_host_.notify_one();
        continue;
      }
      lock.unlock();
      carry_out(entry);
      entry.work = nullptr;
      lock.lock();
      finish(s, entry);
    }
  }
  // Functions of the host run beside the GPU, one at a time.
  void serve_host() {
    std::unique_lock lock(mutex_);
    for (;;) {
      of_host_.wait(lock, [&] { return !host_work_.empty(); });
      auto [s, entry] = std::move(host_work_.front());
      host_work_.pop_front();
      lock.unlock();
      entry.work();
      entry.work = nullptr;
      lock.lock();
      finish(s, entry);
      wake_gpu();
    }
  }
  void carry_out(Entry& entry) {
    if (!entry.work) return;
    const std::uint64_t start = now_ns();
    try {
      entry.work();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      reports_.push_back(std::string(error.what()) + " (seed " + std::to_string(seed()) + ")");
    }
    if (!entry.activity) return;
    if (const auto p = profiler(); p && p->done) {
      entry.activity->start_ns = start;
      entry.activity->end_ns = std::max(now_ns(), start + 1);
      p->done(*entry.activity);
    }
  }
  void finish(CUstream_st* s, const Entry& entry) {
    s->busy = false;
    if (entry.reaches) {
      entry.reaches->reached = true;
      entry.reaches->at_ms = 1e-6 * static_cast<double>(now_ns());
    }
    if (entry.reaches || s->queue.empty()) changed_.notify_all();
  }
  void wake_gpu() {
    if (idle_) entered_.notify_one();
  }

  struct Memory {
    std::size_t bytes;
    bool on_device;
  };
  std::mutex mutex_;
  // Each is woken for its own: who waits for a mark or an empty stream, the GPU's thread, the one of the host's functions.
  std::condition_variable changed_, entered_, of_host_;
  bool idle_ = false;  // the GPU's thread waits
  std::vector<CUstream_st*> streams_;
  std::deque<std::pair<CUstream_st*, Entry>> host_work_;
  std::map<std::byte*, Memory> blocks_;
  std::multimap<std::size_t, void*> kept_;
  std::int64_t used_ = 0, most_used_ = 0, used_before_ = 0;
  Counts counts_;
  bool broken_ = false;
  std::vector<std::string> reports_;
  std::shared_ptr<const Profiler> profiler_;
  std::atomic<std::uint64_t> correlations_{0};
};

Machine& machine();
// Whether the calling thread may use this stream now, has chosen a GPU, and has no capture under way that forbids a call.
cudaError_t usable(cudaStream_t, const char* call);
cudaError_t chosen(const char* call);
cudaError_t uncaptured(const char* call);

}  // namespace emulation
