// CUPTI's activity records of the emulated machine, as its manual describes them: buffers are asked for and given back,
// with the newest layouts of records; a call's external correlation is known to the thread that pushed it.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <cupti.h>

#include "tests/cuda/emulation/gpu.hpp"

namespace {

using KernelRecord = CUpti_ActivityKernel10;
using CopyRecord = CUpti_ActivityMemcpy6;
using FillRecord = CUpti_ActivityMemset4;
using ExternalRecord = CUpti_ActivityExternalCorrelation;

struct Buffer {
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0, used = 0;
};

std::mutex mutex;  // of what follows; not held while a callback runs
CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;
std::set<CUpti_ActivityKind> enabled;
Buffer current;
std::size_t dropped = 0;
thread_local std::vector<std::uint64_t> external;

void give_back(const Buffer& buffer) {
  if (buffer.data) complete(nullptr, 0, buffer.data, buffer.bytes, buffer.used);
}

// A buffer counts as full early, so that there are many.
template <class R>
void add(CUpti_ActivityKind kind, R record) {
  record.kind = kind;
  for (;;) {
    Buffer full, empty;
    {
      const std::lock_guard lock(mutex);
      if (!enabled.contains(kind)) return;
      if (current.data && current.used + sizeof record <= 2000) {
        std::memcpy(current.data + current.used, &record, sizeof record);
        current.used += sizeof record;
        return;
      }
      full = std::exchange(current, {});
    }
    give_back(full);
    std::size_t most = 0;
    request(&empty.data, &empty.bytes, &most);
    const std::lock_guard lock(mutex);
    if (!empty.data || empty.bytes < 2000 || reinterpret_cast<std::uintptr_t>(empty.data) % 8 != 0) {
      ++dropped;
      return;
    }
    if (!current.data) current = empty;  // else another thread was first, and this one is lost
  }
}

template <class R>
void add_activity(CUpti_ActivityKind kind, const emulation::Activity& activity) {
  R record{};
  record.correlationId = static_cast<std::uint32_t>(activity.correlation);
  record.start = activity.start_ns;
  record.end = activity.end_ns;
  add(kind, record);
}

std::size_t bytes_of(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return sizeof(ExternalRecord);
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(KernelRecord);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CopyRecord);
    default:
      return sizeof(FillRecord);
  }
}

}  // namespace

extern "C" {

CUptiResult cuptiGetVersion(std::uint32_t* version) {
  *version = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult, const char** text) {
  *text = "an error";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(std::uint64_t* ns) {
  *ns = emulation::now_ns();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc r,
                                           CUpti_BuffersCallbackCompleteFunc c) {
  request = r;
  complete = c;
  emulation::set_profiler({.called =
                               [](std::uint64_t correlation) {
                                 if (external.empty()) return;
                                 ExternalRecord record{};
                                 record.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
                                 record.externalId = external.back();
                                 record.correlationId = static_cast<std::uint32_t>(correlation);
                                 add(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, record);
                               },
                           .done =
                               [](const emulation::Activity& a) {
                                 if (a.kind == emulation::Activity::kernel)
                                   add_activity<KernelRecord>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, a);
                                 else if (a.kind == emulation::Activity::copy)
                                   add_activity<CopyRecord>(CUPTI_ACTIVITY_KIND_MEMCPY, a);
                                 else
                                   add_activity<FillRecord>(CUPTI_ACTIVITY_KIND_MEMSET, a);
                               }});
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (std::getenv("SEXTANT_EMULATION_NO_TRACE")) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  const std::lock_guard lock(mutex);
  enabled.insert(kind);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  const std::lock_guard lock(mutex);
  enabled.erase(kind);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(std::uint32_t) {
  Buffer full;
  {
    const std::lock_guard lock(mutex);
    full = std::exchange(current, {});
  }
  give_back(full);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  auto* next = *record ? reinterpret_cast<std::uint8_t*>(*record) + bytes_of((*record)->kind) : buffer;
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* n) {
  const std::lock_guard lock(mutex);
  *n = std::exchange(dropped, 0);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, std::uint64_t id) {
  external.push_back(id);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, std::uint64_t* last) {
  if (external.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (last) *last = external.back();
  external.pop_back();
  return CUPTI_SUCCESS;
}

}  // extern "C"
