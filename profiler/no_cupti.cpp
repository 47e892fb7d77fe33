// Linked instead of cupti_trace.cpp when CUDA or CUPTI was not found.
#include "core/base/error.hpp"
#include "profiler/kernel_trace.hpp"

namespace sextant {
namespace {
constexpr const char* kReason =
    "built without CUPTI: install the CUDA toolkit with CUPTI and configure again";
}

std::string kernel_trace_missing() { return kReason; }
std::string kernel_trace_library() { return ""; }

KernelTrace::KernelTrace() { throw BackendError(kReason); }
KernelTrace::~KernelTrace() { static_cast<void>(kReason); }  // as little as there is to end
void KernelTrace::begin(std::uint64_t) { throw BackendError(kReason); }
void KernelTrace::end() { throw BackendError(kReason); }
std::uint64_t KernelTrace::now_ns() const { throw BackendError(kReason); }
std::map<std::uint64_t, TaggedTime> KernelTrace::take(std::uint64_t, std::uint64_t) {
  throw BackendError(kReason);
}
KernelTrace::Losses KernelTrace::losses() const { return {}; }

}  // namespace sextant
