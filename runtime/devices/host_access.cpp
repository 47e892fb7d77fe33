#include "runtime/devices/host_access.hpp"

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/parallel.hpp"

namespace sextant {
namespace {

// Elements that are staged at a time. A model's weights go through the same few pages again and again: fresh ones would have
// to be made by the system, which takes longer than to fill them.
constexpr std::int64_t kPiece = std::int64_t{1} << 22;

TensorView flat(const TensorView& x) { return {x.data, x.dtype, 1, x.elements()}; }

// Memory of the host for a piece in the format of `like`, all zeros.
class Staging {
 public:
  explicit Staging(const TensorView& like) : elements_(like.elements()), dtype_(like.dtype) {
    SEXTANT_CHECK(like.contiguous(), "values are copied without gaps");
    bytes_.resize(static_cast<std::size_t>(std::min(elements_, kPiece) * size_bytes(dtype_)));
  }
  // f(piece, first element), piece after piece.
  template <class F>
  void for_each_piece(F&& f) {
    for (std::int64_t at = 0; at < elements_; at += kPiece)
      f(TensorView(bytes_.data(), dtype_, 1, std::min(kPiece, elements_ - at)), at);
  }

 private:
  std::int64_t elements_;
  Dtype dtype_;
  std::vector<std::byte> bytes_;
};

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
  Staging(to).for_each_piece([&](const TensorView& piece, std::int64_t at) {
    convert(flat(from).column_range(at, piece.cols), piece);
    device.transfer(flat(to).column_range(at, piece.cols).data, piece.data, Bytes(piece.bytes()));
  });
}

void get_values(Device& device, const TensorView& to, const TensorView& from) {
  if (device.unified()) return cpu_kernels().cast({.source = from, .destination = to});
  SEXTANT_CHECK(to.contiguous() && from.elements() == to.elements(), "values fit their place");
  Staging(from).for_each_piece([&](const TensorView& piece, std::int64_t at) {
    device.transfer(piece.data, flat(from).column_range(at, piece.cols).data, Bytes(piece.bytes()));
    convert(piece, flat(to).column_range(at, piece.cols));
  });
}

void put_zeros(Device& device, const TensorView& to) {
  if (device.unified()) return cpu_kernels().zero({.x = to});
  SEXTANT_CHECK(to.contiguous(), "zeros have no gaps");
  device.clear(to.data, Bytes(to.bytes()));
}

Mirror::Mirror(Device& device, const void* values, Bytes bytes) : data_(const_cast<void*>(values)) {
  if (device.unified() || bytes.v == 0) return;
  memory_ = Allocation(device, Space::device, bytes);
  data_ = memory_.data();
  device.transfer(data_, values, bytes);
}

}  // namespace sextant
