#include "runtime/host_access.hpp"

#include <vector>

#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/parallel.hpp"

namespace sextant {
namespace {

// A copy of `like` in the host's memory, in its own format.
class Staging {
 public:
  explicit Staging(const TensorView& like)
      : bytes_(static_cast<std::size_t>(like.bytes())), view_(bytes_.data(), like.dtype, 1, like.elements()) {
    SEXTANT_CHECK(like.contiguous(), "values are copied without gaps");
  }
  const TensorView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

TensorView flat(const TensorView& x) { return {x.data, x.dtype, 1, x.elements()}; }

// Both flat; a model's weights are converted by all cores.
void convert(const TensorView& from, const TensorView& to) {
  parallel_for(to.cols, 1 << 18, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t n = end - begin;
    cpu_kernels().cast({.source = from.column_range(begin, n), .destination = to.column_range(begin, n)});
  });
}

}  // namespace

void put_values(Device& device, const TensorView& to, const TensorView& from) {
  if (device.unified()) return cpu_kernels().cast({.source = from, .destination = to});
  SEXTANT_CHECK(from.contiguous() && from.elements() == to.elements(), "values fit their place");
  const Staging staging(to);
  convert(flat(from), staging.view());
  device.transfer(to.data, staging.view().data, Bytes(to.bytes()));
}

void get_values(Device& device, const TensorView& to, const TensorView& from) {
  if (device.unified()) return cpu_kernels().cast({.source = from, .destination = to});
  SEXTANT_CHECK(to.contiguous() && from.elements() == to.elements(), "values fit their place");
  const Staging staging(from);
  device.transfer(staging.view().data, from.data, Bytes(from.bytes()));
  convert(staging.view(), flat(to));
}

void put_zeros(Device& device, const TensorView& to) {
  if (device.unified()) return cpu_kernels().zero({.x = to});
  const Staging zeros(to);
  device.transfer(to.data, zeros.view().data, Bytes(to.bytes()));
}

Mirror::Mirror(Device& device, const void* values, Bytes bytes) : data_(const_cast<void*>(values)) {
  if (device.unified() || bytes.v == 0) return;
  memory_ = Allocation(device, Space::device, bytes);
  data_ = memory_.data();
  device.transfer(data_, values, bytes);
}

}  // namespace sextant
