// A GPU as a device: CUDA streams, events from a pool, page-locked memory of the host. Tasks are called at once
// and enqueue; nothing blocks but synchronize() and transfer().
//
// Clocks: an event's time is a base event's time plus what the GPU measured between the two, in fp32
// milliseconds. Bases follow each other every second, so that the sum stays exact to about 0.1 us. now() is the
// host's clock, set right by every event that was waited for.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/base/error.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/cuda_stream.hpp"
#include "runtime/devices/make_device.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;
using cuda::check;

// Timing events, made once and used again.
class EventPool {
 public:
  ~EventPool() {
    for (cudaEvent_t event : all_) cudaEventDestroy(event);
  }
  cudaEvent_t take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      cudaEvent_t event = nullptr;
      check(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreate");
      all_.push_back(event);
      return event;
    }
    cudaEvent_t event = free_.back();
    free_.pop_back();
    return event;
  }
  void give(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_, all_;
};

// A point on the GPU's clock, relative to an earlier one, which it forgets once both are reached.
class Point {
 public:
  Point(std::shared_ptr<EventPool> pool, std::shared_ptr<const Point> base)
      : pool_(std::move(pool)), event_(pool_->take()), base_(std::move(base)) {
    if (!base_) at_ = 0.0;  // the clock's origin
  }
  ~Point() { pool_->give(event_); }
  Point(const Point&) = delete;

  cudaEvent_t event() const { return event_; }

  // Seconds from the origin; nothing while it is not reached, and for ever when something went wrong on the GPU, which
  // synchronize() says: others may ask this one, a watchdog's thread among them.
  std::optional<double> reached() const {
    const std::lock_guard lock(mutex_);
    if (at_) return at_;
    float ms = 0;
    if (cudaEventQuery(event_) != cudaSuccess) return cudaGetLastError(), std::nullopt;
    const auto before = base_->reached();
    if (!before) return {};  // on another stream, and later than this event
    if (cudaEventElapsedTime(&ms, base_->event(), event_) != cudaSuccess)
      return cudaGetLastError(), std::nullopt;
    at_ = std::max(0.0, *before + 1e-3 * static_cast<double>(ms));
    base_.reset();
    return at_;
  }

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Point> base_;
  mutable std::optional<double> at_;
};

// A captured graph, made ready to run. It has the address of the stream's scratch in it.
struct CudaProgram {
  cudaGraphExec_t graph = nullptr;
  const void* scratch = nullptr;
  CudaProgram() = default;
  CudaProgram(const CudaProgram&) = delete;
  ~CudaProgram() {
    if (graph) cudaGraphExecDestroy(graph);
  }
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaDeviceOptions& options)
      : ordinal_(options.ordinal), rehearses_(options.rehearses) {
    activate();
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, ordinal_), "cudaGetDeviceProperties");
    name_ = properties.name;
    use_[0].capacity = Bytes(static_cast<std::int64_t>(properties.totalGlobalMem));
    use_[1].capacity = options.host_memory;
    const StreamId first = create_stream("clock");
    origin_ = base_ = std::make_shared<Point>(pool_, nullptr);
    check(cudaEventRecord(base_->event(), stream(first).stream), "cudaEventRecord");
    check(cudaEventSynchronize(base_->event()), "cudaEventSynchronize");
    start_ = based_ = Clock::now();
  }

  ~CudaDevice() override {
    cudaSetDevice(ordinal_);
    for (auto& s : streams_) {
      cudaStreamSynchronize(s->stream);
      cuda::release_scratch(*s);
      cudaStreamDestroy(s->stream);
    }
  }

  std::string_view name() const override { return name_; }
  bool unified() const override { return false; }

  std::byte* allocate(Space space, Bytes bytes) override {
    activate();
    const std::lock_guard lock(mutex_);
    MemoryUse& use = use_[static_cast<std::size_t>(space)];
    void* data = nullptr;
    const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes.v, 1));
    const cudaError_t status = use.used + bytes > use.capacity ? cudaErrorMemoryAllocation
                               : space == Space::device        ? cudaMalloc(&data, size)
                                                        : cudaHostAlloc(&data, size, cudaHostAllocDefault);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      std::size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      throw BackendError(space == Space::device
                             ? fmt::format("{} memory: {} bytes asked, {} of {} in use here, {} free on {}",
                                           sextant::name(space), bytes.v, use.used.v, use.capacity.v, free,
                                           name_)
                             : fmt::format("{} memory: {} page-locked bytes asked, {} of {} in use",
                                           sextant::name(space), bytes.v, use.used.v, use.capacity.v));
    }
    check(status, space == Space::device ? "cudaMalloc" : "cudaHostAlloc");
    auto* block = static_cast<std::byte*>(data);
    blocks_[block] = bytes;
    use.used += bytes;
    use.peak = std::max(use.peak, use.used);
    return block;
  }
  void release(Space space, std::byte* data) override {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(data);
    SEXTANT_CHECK(block != blocks_.end(), "memory is released once, in the space it came from");
    use_[static_cast<std::size_t>(space)].used -= block->second;
    blocks_.erase(block);
    cudaSetDevice(ordinal_);
    if (space == Space::device)
      cudaFree(data);
    else
      cudaFreeHost(data);
  }
  MemoryUse memory(Space space) const override {
    const std::lock_guard lock(mutex_);
    MemoryUse use = use_[static_cast<std::size_t>(space)];
    if (space == Space::device) {
      use.used += Bytes(scratch_);
      use.peak += Bytes(scratch_);
    }
    return use;
  }
  void transfer(void* to, const void* from, Bytes bytes) override {
    activate();
    if (bytes.v <= 0) return;
    const cudaStream_t own = stream(0).stream;
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes.v), cudaMemcpyDefault, own),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(own), "cudaStreamSynchronize");
  }

  void clear(void* data, Bytes bytes) override {
    activate();
    if (bytes.v <= 0) return;
    const cudaStream_t own = stream(0).stream;
    check(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes.v), own), "cudaMemsetAsync");
    check(cudaStreamSynchronize(own), "cudaStreamSynchronize");
  }

  StreamId create_stream(std::string) override {
    activate();
    auto made = std::make_unique<CudaStream>();
    check(cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking), "cudaStreamCreate");
    made->device = ordinal_;
    made->scratch_total = &scratch_;
    streams_.push_back(std::move(made));
    return static_cast<StreamId>(streams_.size()) - 1;
  }
  void rehearse(bool on) override {
    for (auto& s : streams_) s->rehearsal = on && rehearses_;
  }
  void launch(StreamId id, Task task) override {
    activate();
    task(NativeStream{&stream(id)});
  }
  void launch_host(StreamId id, std::function<void()> work) override {
    activate();
    require_no_capture(id, "the host's work");
    // The callback owns the work; what it throws would end the process, so it is kept for the next synchronize.
    struct Call {
      CudaDevice* device;
      std::function<void()> work;
    };
    auto call = std::make_unique<Call>(Call{this, std::move(work)});
    check(cudaLaunchHostFunc(
              stream(id).stream,
              [](void* data) {
                const std::unique_ptr<Call> owned(static_cast<Call*>(data));
                try {
                  owned->work();
                } catch (...) {
                  owned->device->keep(std::current_exception());
                }
              },
              call.get()),
          "cudaLaunchHostFunc");
    static_cast<void>(call.release());
  }
  bool captures() const override { return true; }
  void begin_capture(StreamId id) override {
    activate();
    CudaStream& s = stream(id);
    // Of this thread: other ranks may share the GPU, and wait and allocate meanwhile.
    check(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    s.capturing = true;
  }
  // A call that cannot be captured has spoilt the capture, which its end then says.
  Program end_capture(StreamId id) override {
    activate();
    CudaStream& s = stream(id);
    s.capturing = false;
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(s.stream, &graph);
    if (ended != cudaSuccess || !graph) {
      cudaGetLastError();
      return {};
    }
    auto program = std::make_shared<CudaProgram>();
    const cudaError_t made = cudaGraphInstantiate(&program->graph, graph, 0);
    cudaGraphDestroy(graph);
    if (made != cudaSuccess) {
      cudaGetLastError();
      program->graph = nullptr;
      return {};
    }
    program->scratch = s.scratch;
    return {std::move(program)};
  }
  bool replay(StreamId id, const Program& program) override {
    activate();
    const auto& p = *static_cast<const CudaProgram*>(program.state.get());
    if (p.scratch != stream(id).scratch) return false;
    check(cudaGraphLaunch(p.graph, stream(id).stream), "cudaGraphLaunch");
    return true;
  }
  void copy(StreamId id, std::byte* to, Space, const std::byte* from, Space, Bytes bytes) override {
    activate();
    require_no_capture(id, "a copy");
    if (bytes.v > 0)
      check(
          cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes.v), cudaMemcpyDefault, stream(id).stream),
          "cudaMemcpyAsync");
  }

  Event record(StreamId id) override {
    activate();
    require_no_capture(id, "an event");
    if (Clock::now() - based_ > std::chrono::seconds(1)) {
      auto next = std::make_shared<Point>(pool_, base_);
      check(cudaEventRecord(next->event(), stream(id).stream), "cudaEventRecord");
      base_ = std::move(next);
      based_ = Clock::now();
    }
    auto point = std::make_shared<Point>(pool_, base_);
    check(cudaEventRecord(point->event(), stream(id).stream), "cudaEventRecord");
    return {std::move(point)};
  }
  void wait(StreamId id, const Event& event) override {
    activate();
    check(cudaStreamWaitEvent(stream(id).stream, point(event).event(), 0), "cudaStreamWaitEvent");
  }
  std::optional<Seconds> reached(const Event& event) const override {
    cudaSetDevice(ordinal_);  // a thread that has chosen no GPU would wake the first
    const auto at = point(event).reached();
    if (!at) return {};
    return Seconds(*at);
  }
  void synchronize(const Event& event) override {
    activate();
    const Point& p = point(event);
    const bool waited = !p.reached();
    check(cudaEventSynchronize(p.event()), "cudaEventSynchronize");
    if (const auto at = p.reached(); at && waited) ahead_ = host_seconds() - *at;
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  Seconds now() const override { return Seconds(host_seconds() - ahead_); }

 private:
  void activate() const { check(cudaSetDevice(ordinal_), "cudaSetDevice"); }
  void require_no_capture(StreamId id, const char* what) {
    if (stream(id).capturing) throw BackendError(fmt::format("{} is no part of a program", what));
  }
  CudaStream& stream(StreamId id) { return *streams_.at(static_cast<std::size_t>(id)); }
  static const Point& point(const Event& event) {
    SEXTANT_CHECK(event.state, "the event was recorded");
    return *static_cast<const Point*>(event.state.get());
  }
  double host_seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }

  const int ordinal_;
  const bool rehearses_;
  std::string name_;
  mutable std::mutex mutex_;
  MemoryUse use_[2];
  std::map<std::byte*, Bytes> blocks_;
  std::exception_ptr error_;
  std::int64_t scratch_ = 0;
  std::vector<std::unique_ptr<CudaStream>> streams_;  // 0: of transfers and the clock's origin
  std::shared_ptr<EventPool> pool_ = std::make_shared<EventPool>();
  std::shared_ptr<const Point> origin_, base_;
  Clock::time_point start_, based_;
  std::atomic<double> ahead_{0};  // of the host's clock before the GPU's
};

}  // namespace

std::vector<CudaGpu> cuda_gpus(std::string& why_none) {
  int count = 0, driver = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  cudaDriverGetVersion(&driver);
  if (status == cudaErrorInsufficientDriver && driver == 0)
    why_none = "no NVIDIA driver";
  else if (status == cudaErrorInsufficientDriver)
    why_none = fmt::format("the driver is of CUDA {}.{}, this build needs {}.{}", driver / 1000,
                           driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  else if (status != cudaSuccess)
    why_none = cudaGetErrorString(status);
  else if (count == 0)
    why_none = "the driver shows no GPU";
  else
    why_none.clear();
  std::vector<CudaGpu> gpus;
  for (int i = 0; i < (status == cudaSuccess ? count : 0); ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    CudaGpu gpu;
    gpu.name = p.name;
    gpu.memory = Bytes(static_cast<std::int64_t>(p.totalGlobalMem));
    gpu.major = p.major;
    gpu.minor = p.minor;
    gpu.multiprocessors = p.multiProcessorCount;
    gpu.level2 = Bytes(p.l2CacheSize);
    if (p.major < 8)
      gpu.refused =
          fmt::format("{} is sm_{}{}: kernels are built for sm_80 and later", p.name, p.major, p.minor);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  std::string why_none;
  const auto gpus = cuda_gpus(why_none);
  if (gpus.empty()) throw BackendError(why_none);
  if (options.ordinal < 0 || options.ordinal >= static_cast<int>(gpus.size()))
    throw BackendError(fmt::format("GPU {} of {} is not there", options.ordinal, gpus.size()));
  if (const auto& refused = gpus[static_cast<std::size_t>(options.ordinal)].refused; !refused.empty())
    throw BackendError(refused);
  if (const std::string missing = cuda_libraries().missing; !missing.empty()) throw BackendError(missing);
  return std::make_unique<CudaDevice>(options);
}

}  // namespace sextant
