// A CPU as a device: one worker thread per stream, steady-clock events, two accounted memories and an
// emulated link between them.
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "runtime/devices/make_device.hpp"
#include "runtime/devices/shared_link.hpp"

namespace sextant {

std::string_view name(Space space) { return space == Space::device ? "device" : "host"; }

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kAllocationAlignment = 64;  // a cache line, and the widest vector register

struct CpuEvent {
  std::mutex mutex;
  std::condition_variable reached;
  std::optional<Clock::time_point> at;
  std::exception_ptr error;

  void reach(std::exception_ptr why) {
    const std::lock_guard lock(mutex);
    at = Clock::now();
    error = std::move(why);
    reached.notify_all();
  }
  std::exception_ptr await() {
    std::unique_lock lock(mutex);
    reached.wait(lock, [&] { return at.has_value(); });
    return error;
  }
};

std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

class Worker {
 public:
  explicit Worker(const std::function<void(const std::string&)>& on_error)
      : on_error_(on_error), thread_([this] { loop(); }) {}
  // Finishes what was enqueued.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    filled_.notify_one();
  }

  void run(Task task) {
    push([this, task = std::move(task)] {
      if (error_) return;
      try {
        task(NativeStream{});
      } catch (...) {
        error_ = std::current_exception();
        if (on_error_) on_error_(what_of(error_));
      }
    });
  }
  void record(std::shared_ptr<CpuEvent> event) {
    push([this, event = std::move(event)] { event->reach(error_); });
  }
  void wait(std::shared_ptr<CpuEvent> event) {
    push([this, event = std::move(event)] {
      auto error = event->await();
      if (!error_) error_ = std::move(error);
    });
  }

 private:
  void push(std::function<void()> item) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    filled_.notify_one();
  }

  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      filled_.wait(lock, [&] { return closing_ || !items_.empty(); });
      if (items_.empty()) return;
      auto item = std::move(items_.front());
      items_.pop_front();
      lock.unlock();
      item();
      item = nullptr;  // what a task holds is freed outside the lock
      lock.lock();
    }
  }

  std::function<void(const std::string&)> on_error_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<std::function<void()>> items_;
  bool closing_ = false;
  std::exception_ptr error_;  // of the worker's thread only
  std::jthread thread_;       // last: joined before the rest goes
};

class Memory {
 public:
  Memory(Space space, Bytes capacity) : space_(space), use_{capacity, {}, {}} {}

  std::byte* allocate(Bytes bytes) {
    const std::lock_guard lock(mutex_);
    if (use_.used + bytes > use_.capacity)
      throw BackendError(fmt::format("{} memory: {} bytes asked, {} of {} in use", name(space_), bytes.v,
                                     use_.used.v, use_.capacity.v));
    const auto whole = (static_cast<std::size_t>(bytes.v) + kAllocationAlignment) / kAllocationAlignment *
                       kAllocationAlignment;
    auto* data = static_cast<std::byte*>(std::aligned_alloc(kAllocationAlignment, whole));
    if (!data)
      throw BackendError(fmt::format("{} memory: the system has no {} bytes", name(space_), bytes.v));
    blocks_[data] = bytes;
    use_.used += bytes;
    use_.peak = std::max(use_.peak, use_.used);
    return data;
  }
  void release(std::byte* data) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(data);
    SEXTANT_CHECK(block != blocks_.end(), "memory is released once, in the space it came from");
    use_.used -= block->second;
    blocks_.erase(block);
    std::free(data);
  }
  MemoryUse use() const {
    const std::lock_guard lock(mutex_);
    return use_;
  }

 private:
  Space space_;
  mutable std::mutex mutex_;
  MemoryUse use_;
  std::map<std::byte*, Bytes> blocks_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(CpuDeviceOptions options)
      : options_(std::move(options)),
        memories_{{Space::device, options_.device_memory}, {Space::host, options_.host_memory}},
        to_host_(options_.host_link),
        to_device_(options_.host_link) {}

  std::string_view name() const override { return "cpu"; }

  std::byte* allocate(Space space, Bytes bytes) override { return memory_of(space).allocate(bytes); }
  void release(Space space, std::byte* data) override { memory_of(space).release(data); }
  MemoryUse memory(Space space) const override { return memories_[static_cast<std::size_t>(space)].use(); }

  bool unified() const override { return options_.unified; }
  void transfer(void* to, const void* from, Bytes bytes) override {
    if (bytes.v > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes.v));
  }

  StreamId create_stream(std::string) override {
    workers_.push_back(std::make_unique<Worker>(options_.on_error));
    return static_cast<StreamId>(workers_.size()) - 1;
  }
  void launch(StreamId stream, Task task) override {
    if (const auto open = captured_.find(stream); open != captured_.end())
      open->second->push_back(std::move(task));
    else
      worker(stream).run(std::move(task));
  }
  // A program is the list of its tasks: as a GPU's, so that what is built on programs can be tested without one.
  bool captures() const override { return true; }
  void begin_capture(StreamId stream) override { captured_[stream] = std::make_shared<std::vector<Task>>(); }
  Program end_capture(StreamId stream) override {
    const auto open = captured_.find(stream);
    SEXTANT_CHECK(open != captured_.end(), "what ends has begun");
    Program program{std::move(open->second)};
    captured_.erase(open);
    return program;
  }
  bool replay(StreamId stream, const Program& program) override {
    worker(stream).run([tasks = std::static_pointer_cast<std::vector<Task>>(program.state)](NativeStream s) {
      for (const Task& task : *tasks) task(s);
    });
    return true;
  }

  void copy(StreamId stream, std::byte* to, Space to_space, const std::byte* from, Space from_space,
            Bytes bytes) override {
    if (captured_.contains(stream)) throw BackendError("a copy is no part of a program");
    worker(stream).run([=, this](NativeStream) {
      const auto move = [&] {
        if (bytes.v > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes.v));
      };
      if (to_space == from_space) return move();
      SharedLink::Transfer transfer(to_space == Space::host ? to_host_ : to_device_, bytes);
      move();
      const auto through = transfer.finish();
      std::this_thread::sleep_until(through + std::chrono::duration<double>(options_.host_link_latency.v));
    });
  }

  Event record(StreamId stream) override {
    if (captured_.contains(stream)) throw BackendError("an event is no part of a program");
    auto event = std::make_shared<CpuEvent>();
    worker(stream).record(event);
    return {event};
  }
  void wait(StreamId stream, const Event& event) override { worker(stream).wait(state(event)); }

  std::optional<Seconds> reached(const Event& event) const override {
    const auto cpu = state(event);
    const std::lock_guard lock(cpu->mutex);
    if (!cpu->at) return std::nullopt;
    return since_start(*cpu->at);
  }
  void synchronize(const Event& event) override {
    if (const auto error = state(event)->await()) std::rethrow_exception(error);
  }
  Seconds now() const override { return since_start(Clock::now()); }

 private:
  Seconds since_start(Clock::time_point at) const {
    return Seconds(std::chrono::duration<double>(at - start_).count());
  }
  static std::shared_ptr<CpuEvent> state(const Event& event) {
    SEXTANT_CHECK(event.state, "the event was recorded");
    return std::static_pointer_cast<CpuEvent>(event.state);
  }
  Worker& worker(StreamId stream) { return *workers_.at(static_cast<std::size_t>(stream)); }
  Memory& memory_of(Space space) { return memories_[static_cast<std::size_t>(space)]; }

  const Clock::time_point start_ = Clock::now();
  CpuDeviceOptions options_;
  Memory memories_[2];
  SharedLink to_host_, to_device_;
  std::map<StreamId, std::shared_ptr<std::vector<Task>>> captured_;  // of streams that are captured now
  std::vector<std::unique_ptr<Worker>> workers_;                     // last: their tasks use the rest
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(CpuDeviceOptions options) {
  return std::make_unique<CpuDevice>(std::move(options));
}

}  // namespace sextant
