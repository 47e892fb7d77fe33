#include "kernels/cuda/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant::cuda {

Library::Library(std::string name) : name_(std::move(name)) {
  handle_ = dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_) return;
  const char* why = dlerror();
  why_not_ = why ? why : name_ + " was not found";
}

void* Library::find(const char* symbol) const {
  if (!handle_) throw BackendError(fmt::format("{} (is its folder in LD_LIBRARY_PATH?)", why_not_));
  void* address = dlsym(handle_, symbol);
  if (!address) throw BackendError(fmt::format("{} has no {}: it is too old", name_, symbol));
  return address;
}

}  // namespace sextant::cuda
