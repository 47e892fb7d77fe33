// Linked instead of the CUDA backend when no toolkit was found.
#include "core/error.hpp"
#include "runtime/backends.hpp"

namespace sextant {
namespace {
constexpr const char* kNoCuda =
    "built without CUDA: configure again where its toolkit is installed (nvcc, cuBLAS, cuDNN), without "
    "-DSEXTANT_CUDA=OFF";
}

std::vector<CudaGpu> cuda_gpus(std::string& why_none) {
  why_none = kNoCuda;
  return {};
}
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions&) { throw BackendError(kNoCuda); }
std::unique_ptr<Communicator> share_cuda_device(std::unique_ptr<Communicator>, int) {
  throw BackendError(kNoCuda);
}

}  // namespace sextant
