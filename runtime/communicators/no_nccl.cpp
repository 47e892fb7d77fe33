// Linked instead of the NCCL communicator when CUDA or nccl.h was not found.
#include "core/base/error.hpp"
#include "runtime/communicators/make_communicator.hpp"

namespace sextant {
namespace {
constexpr const char* kNoNccl = "built without NCCL: install CUDA and nccl.h and configure again";
}

std::string nccl_version(std::string& why_none) {
  why_none = kNoNccl;
  return "";
}
std::unique_ptr<Communicator> connect_nccl(std::unique_ptr<Communicator>, int) {
  throw BackendError(kNoNccl);
}

}  // namespace sextant
