// Libraries of the emulated machine: those that are linked into the program, under the names that they are looked for.
#include "kernels/cuda/library.hpp"

#include <dlfcn.h>

#include "core/base/error.hpp"

namespace sextant::cuda {
namespace {

// A function that is there when the library is.
const char* function_of(const std::string& library) {
  if (library.starts_with("libcublasLt.")) return "cublasLtCreate";
  if (library.starts_with("libcudnn.")) return "cudnnCreate";
  if (library.starts_with("libnccl.")) return "ncclGetVersion";
  if (library.starts_with("libcupti.")) return "cuptiGetVersion";
  if (library.starts_with("libnvidia-ml.")) return "nvmlInit_v2";
  return nullptr;
}

}  // namespace

Library::Library(std::string name) : name_(std::move(name)) {
  const char* function = function_of(name_);
  if (function && dlsym(RTLD_DEFAULT, function)) handle_ = this;
  if (!handle_) why_not_ = name_ + " is not emulated";
}

void* Library::find(const char* symbol) const {
  void* address = handle_ ? dlsym(RTLD_DEFAULT, symbol) : nullptr;
  if (!address) throw BackendError(name_ + " has no " + symbol);
  return address;
}

}  // namespace sextant::cuda
