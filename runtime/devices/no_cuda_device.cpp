// Linked instead of the CUDA device when no toolkit was found.
#include "core/base/error.hpp"
#include "runtime/devices/make_device.hpp"

namespace sextant {

std::vector<CudaGpu> cuda_gpus(std::string& why_none) {
  why_none = kNoCuda;
  return {};
}
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions&) { throw BackendError(kNoCuda); }

}  // namespace sextant
