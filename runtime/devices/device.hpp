// One rank's processor: two separately accounted memories, streams, events, launches and copies. Narrow on
// purpose: what every backend can honour. Knows nothing of graphs, kernels or other ranks.
//
// Work on one stream runs in order; between streams only events order it. An exception thrown by a task stays
// on its stream: later work of the stream is skipped, events recorded there carry the error on to every
// stream that waits for them, and synchronize() rethrows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/units.hpp"
#include "kernels/native_stream.hpp"

namespace sextant {

enum class Space : std::uint8_t { device, host };
std::string_view name(Space);

using StreamId = int;

// Marks a point of a stream. A value: copies mean the same point.
struct Event {
  std::shared_ptr<void> state;  // the backend's
};

// What was captured of a stream, to be enqueued again and again. Empty: nothing was.
struct Program {
  std::shared_ptr<void> state;  // the backend's
  explicit operator bool() const { return state != nullptr; }
};

// What is enqueued. On the CPU it is the work itself and runs on the stream's thread; on a GPU it is called
// at once and enqueues kernels on the native stream.
using Task = std::function<void(NativeStream)>;

struct MemoryUse {
  Bytes capacity, used, peak;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;

  // Throws BackendError when the space is full. Aligned for any kernel.
  virtual std::byte* allocate(Space, Bytes) = 0;
  virtual void release(Space, std::byte*) = 0;
  virtual MemoryUse memory(Space) const = 0;
  // Whether kernels read the host's memory and the host reads the device's. If not, what they share goes through
  // copies (runtime/devices/host_access.hpp).
  virtual bool unified() const { return true; }
  // Between memory of either space and any memory of the host. Blocks; not within a step.
  virtual void transfer(void* to, const void* from, Bytes) = 0;

  // Zeros, in memory of either space. Blocks; not within a step.
  virtual void clear(void* data, Bytes bytes) { std::memset(data, 0, static_cast<std::size_t>(bytes.v)); }

  virtual StreamId create_stream(std::string name) = 0;
  // While on, results of kernels do not count: libraries may try what is fastest.
  virtual void rehearse(bool) {}
  virtual void launch(StreamId, Task) = 0;
  // Work of the host's processor in the stream's order; it may not call the device.
  virtual void launch_host(StreamId stream, std::function<void()> work) {
    launch(stream, [work = std::move(work)](NativeStream) { work(); });
  }
  // What this thread launches on the stream from begin_capture() to end_capture() does not run: it becomes a program,
  // which replay() enqueues as one, with the same memory and arguments each time. Launches only: no events, no copies, no
  // host's work. A device that cannot, or not this, gives an empty program, and nothing has run; replay() says no when
  // something that the program relies on has changed since.
  virtual bool captures() const { return false; }
  virtual void begin_capture(StreamId) {}
  virtual Program end_capture(StreamId) { return {}; }
  virtual bool replay(StreamId, const Program&) { return false; }
  // Between or within the spaces; crossing them takes the time of the host link.
  virtual void copy(StreamId, std::byte* to, Space to_space, const std::byte* from, Space from_space,
                    Bytes) = 0;

  virtual Event record(StreamId) = 0;
  virtual void wait(StreamId, const Event&) = 0;  // later work of the stream comes after the event
  // Time on the device's clock at which the event was reached; nothing while it is pending.
  virtual std::optional<Seconds> reached(const Event&) const = 0;
  virtual void synchronize(const Event&) = 0;  // blocks the caller; rethrows what went wrong before the event
  virtual Seconds now() const = 0;             // the device's clock; starts at 0
};

// Memory of a device, returned when it leaves scope.
class Allocation {
 public:
  Allocation() = default;
  Allocation(Device& device, Space space, Bytes bytes)
      : device_(&device), space_(space), data_(device.allocate(space, bytes)) {}
  Allocation(Allocation&& other) noexcept { swap(other); }
  Allocation& operator=(Allocation&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Allocation() {
    if (data_) device_->release(space_, data_);
  }
  std::byte* data() const { return data_; }
  Space space() const { return space_; }

 private:
  void swap(Allocation& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(space_, other.space_);
    std::swap(data_, other.data_);
  }
  Device* device_ = nullptr;
  Space space_ = Space::device;
  std::byte* data_ = nullptr;
};

}  // namespace sextant
