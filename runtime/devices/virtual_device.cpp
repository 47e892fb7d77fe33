// The device without arithmetic: every stream is a clock. Memory is accounted but never touched.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "runtime/devices/make_device.hpp"

namespace sextant {

namespace {

class VirtualDevice final : public Device {
 public:
  std::string_view name() const override { return "virtual"; }

  // Addresses are only labels here: distinct, aligned, never dereferenced.
  std::byte* allocate(Space space, Bytes bytes) override {
    auto& use = use_[static_cast<std::size_t>(space)];
    use.used += bytes;
    use.peak = std::max(use.peak, use.used);
    next_ += (static_cast<std::uintptr_t>(bytes.v) / 64 + 1) * 64;
    auto* label = reinterpret_cast<std::byte*>(next_);  // NOLINT(performance-no-int-to-ptr): see above
    blocks_[label] = bytes;
    return label;
  }
  void release(Space space, std::byte* data) override {
    const auto block = blocks_.find(data);
    SEXTANT_CHECK(block != blocks_.end(), "memory is released once");
    use_[static_cast<std::size_t>(space)].used -= block->second;
    blocks_.erase(block);
  }
  MemoryUse memory(Space space) const override { return use_[static_cast<std::size_t>(space)]; }

  void transfer(void*, const void*, Bytes) override {}

  StreamId create_stream(std::string) override {
    clocks_.push_back(std::make_unique<Seconds>());
    return static_cast<StreamId>(clocks_.size()) - 1;
  }
  void launch(StreamId stream, Task task) override { task(NativeStream{&clock(stream)}); }
  void copy(StreamId, std::byte*, Space, const std::byte*, Space, Bytes) override {}

  Event record(StreamId stream) override { return {std::make_shared<Seconds>(clock(stream))}; }
  void wait(StreamId stream, const Event& event) override {
    clock(stream) = std::max(clock(stream), *reached(event));
  }
  std::optional<Seconds> reached(const Event& event) const override {
    SEXTANT_CHECK(event.state, "the event was recorded");
    return *std::static_pointer_cast<Seconds>(event.state);
  }
  void synchronize(const Event&) override {}
  Seconds now() const override {
    Seconds latest;
    for (const auto& clock : clocks_) latest = std::max(latest, *clock);
    return latest;
  }

 private:
  Seconds& clock(StreamId stream) { return *clocks_.at(static_cast<std::size_t>(stream)); }

  MemoryUse use_[2] = {{from_gib(1 << 20), {}, {}}, {from_gib(1 << 20), {}, {}}};
  std::uintptr_t next_ = 64;
  std::map<std::byte*, Bytes> blocks_;
  std::vector<std::unique_ptr<Seconds>> clocks_;
};

}  // namespace

std::unique_ptr<Device> make_virtual_device() { return std::make_unique<VirtualDevice>(); }

Seconds& virtual_clock(NativeStream stream) {
  SEXTANT_CHECK(stream.handle, "the task runs on a virtual device");
  return *static_cast<Seconds*>(stream.handle);
}

}  // namespace sextant
