// Linked instead of the CUDA communicator when no toolkit was found.
#include "core/base/error.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/make_device.hpp"

namespace sextant {

void share_cuda_device(std::span<std::unique_ptr<Communicator>>, int) { throw BackendError(kNoCuda); }

}  // namespace sextant
