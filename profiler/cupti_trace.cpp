// The only file that knows CUPTI. Loaded when it is first needed: a machine without it can do everything else.
//
// CUPTI asks for empty buffers and gives full ones back, on threads of its own, through two functions without an
// argument of ours: so what they share is one object of the process, which is never destroyed, since a buffer may
// come back while the process ends. A buffer is aligned to 8 bytes at least and parsed when it is given back.
//
// Records of calls to runtime and driver are asked for because a call's external correlation id comes with them; the
// calls themselves are not looked at. Kernels are asked for as CONCURRENT_KERNEL, which does not make them run one
// after another. cuptiActivityFlushAll(0) gives back buffers whose records are complete, which all are once the
// device has been waited for; it does not wait itself.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include <cupti.h>
#include <fmt/format.h>

#include "core/base/error.hpp"
#include "kernels/cuda/library.hpp"
#include "profiler/kernel_trace.hpp"

namespace sextant {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;  // NVIDIA advises 1 to 10 MB
constexpr std::size_t kAlignment = 64;                      // 8 is asked for
constexpr auto kExternal = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
constexpr std::array kKinds = {
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,    CUPTI_ACTIVITY_KIND_MEMCPY,  CUPTI_ACTIVITY_KIND_MEMSET};

// Records of later versions begin as these do.
using KernelRecord = CUpti_ActivityKernel9;
using CopyRecord = CUpti_ActivityMemcpy5;
using FillRecord = CUpti_ActivityMemset4;
using ExternalRecord = CUpti_ActivityExternalCorrelation;

struct Cupti {
  cuda::Library library;
  decltype(&cuptiGetVersion) version = nullptr;
  decltype(&cuptiGetResultString) describe = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&cuptiActivityPushExternalCorrelationId) push = nullptr;
  decltype(&cuptiActivityPopExternalCorrelationId) pop = nullptr;
  std::string missing;

  // By its name first, then where the build has seen it.
  Cupti()
      : library(cuda::first_found({"libcupti.so." + std::to_string(CUDA_VERSION / 1000), "libcupti.so.12",
                                   SEXTANT_CUPTI_LIBRARY})) {
    if (!library.found()) {
      missing = library.why_not() + " (is CUPTI's folder, extras/CUPTI/lib64, in LD_LIBRARY_PATH?)";
      return;
    }
    try {
      library.get(version, "cuptiGetVersion");
      library.get(describe, "cuptiGetResultString");
      library.get(timestamp, "cuptiGetTimestamp");
      library.get(register_callbacks, "cuptiActivityRegisterCallbacks");
      library.get(enable, "cuptiActivityEnable");
      library.get(disable, "cuptiActivityDisable");
      library.get(flush, "cuptiActivityFlushAll");
      library.get(next, "cuptiActivityGetNextRecord");
      library.get(dropped, "cuptiActivityGetNumDroppedRecords");
      library.get(push, "cuptiActivityPushExternalCorrelationId");
      library.get(pop, "cuptiActivityPopExternalCorrelationId");
    } catch (const BackendError& error) {
      missing = error.what();
    }
  }
};

const Cupti& cupti() {
  static const auto* instance = new Cupti;
  return *instance;
}

void require(CUptiResult status, const char* call) {
  if (status == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  if (cupti().describe(status, &text) != CUPTI_SUCCESS || !text) text = "unknown";
  throw BackendError(fmt::format("{}: {} ({})", call, text, static_cast<int>(status)));
}

// What the callbacks share with the trace. Only parsing happens under the lock.
class Records {
 public:
  void request(std::uint8_t** buffer, std::size_t* size) noexcept {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
    } else {
      *buffer = free_.back();
      free_.pop_back();
    }
    *size = *buffer ? kBufferBytes : 0;  // without a buffer CUPTI drops records, and counts them
  }
  void complete(std::uint8_t* buffer, std::size_t valid) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      if (buffer && valid > 0) parse(buffer, valid);
      std::size_t dropped = 0;
      if (cupti().dropped(nullptr, 0, &dropped) == CUPTI_SUCCESS)
        dropped_ += static_cast<std::int64_t>(dropped);
      if (buffer) free_.push_back(buffer);
    } catch (const std::bad_alloc&) {
      ++dropped_;
      std::free(buffer);
    }
  }
  std::map<std::uint64_t, TaggedTime> take(std::uint64_t first, std::uint64_t last) {
    const std::lock_guard lock(mutex_);
    return join_.take(first, last);
  }
  KernelTrace::Losses losses() {
    const std::lock_guard lock(mutex_);
    return {dropped_, join_.untimed(), join_.untagged()};
  }
  void restart() {
    const std::lock_guard lock(mutex_);
    join_ = {};
    dropped_ = 0;
  }
  bool recording = false;  // of the one trace there may be

 private:
  template <class R>
  static const R& as(const CUpti_Activity* record) {
    return *reinterpret_cast<const R*>(record);
  }
  void parse(std::uint8_t* buffer, std::size_t valid) {
    CUpti_Activity* record = nullptr;
    // Ends with MAX_LIMIT_REACHED, or at a record that is not whole.
    while (cupti().next(buffer, valid, &record) == CUPTI_SUCCESS) read(record);
  }
  void read(const CUpti_Activity* record) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
        if (const auto& x = as<ExternalRecord>(record); x.externalKind == kExternal)
          join_.add(TaggedCall{x.correlationId, x.externalId});
        return;
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return add<KernelRecord>(record);
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        return add<CopyRecord>(record);
      case CUPTI_ACTIVITY_KIND_MEMSET:
        return add<FillRecord>(record);
      default:
        return;
    }
  }
  template <class R>
  void add(const CUpti_Activity* record) {
    const auto& x = as<R>(record);
    join_.add(GpuActivity{x.correlationId, x.start, x.end});
  }

  std::mutex mutex_;
  ActivityJoin join_;
  std::vector<std::uint8_t*> free_;
  std::int64_t dropped_ = 0;
};

Records& records() {
  static auto* instance = new Records;
  return *instance;
}

void CUPTIAPI request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *most_records = 0;  // as many as fit
  records().request(buffer, size);
}
void CUPTIAPI complete_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                              std::size_t valid) {
  records().complete(buffer, valid);
}

}  // namespace

std::string kernel_trace_missing() { return cupti().missing; }

std::string kernel_trace_library() {
  std::uint32_t version = 0;
  if (!cupti().missing.empty() || cupti().version(&version) != CUPTI_SUCCESS) return "";
  return version < 10000 ? fmt::format("CUPTI API {}", version)  // before CUDA 13
                         : fmt::format("CUPTI {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

KernelTrace::KernelTrace() {
  if (!cupti().missing.empty()) throw BackendError(cupti().missing);
  SEXTANT_CHECK(!records().recording, "one trace of kernels at a time");
  records().restart();
  require(cupti().register_callbacks(request_buffer, complete_buffer), "cuptiActivityRegisterCallbacks");
  for (std::size_t i = 0; i < kKinds.size(); ++i)
    if (const CUptiResult status = cupti().enable(kKinds[i]); status != CUPTI_SUCCESS) {
      for (std::size_t made = 0; made < i; ++made) cupti().disable(kKinds[made]);
      require(status, "cuptiActivityEnable");
    }
  records().recording = true;
}

KernelTrace::~KernelTrace() {
  for (const CUpti_ActivityKind kind : kKinds) cupti().disable(kind);
  cupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);  // so that no buffer comes back into the next trace
  records().recording = false;
}

void KernelTrace::begin(std::uint64_t tag) {
  require(cupti().push(kExternal, tag), "cuptiActivityPushExternalCorrelationId");
}
void KernelTrace::end() { require(cupti().pop(kExternal, nullptr), "cuptiActivityPopExternalCorrelationId"); }

std::uint64_t KernelTrace::now_ns() const {
  std::uint64_t now = 0;
  require(cupti().timestamp(&now), "cuptiGetTimestamp");
  return now;
}

std::map<std::uint64_t, TaggedTime> KernelTrace::take(std::uint64_t first, std::uint64_t last) {
  require(cupti().flush(0), "cuptiActivityFlushAll");  // outside of the lock, which the callbacks take
  return records().take(first, last);
}

KernelTrace::Losses KernelTrace::losses() const { return records().losses(); }

}  // namespace sextant
