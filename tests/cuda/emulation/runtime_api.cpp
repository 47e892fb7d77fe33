// The functions of the CUDA runtime that the project calls, on the emulated machine.
#include <cstdio>
#include <cstdlib>

#include "tests/cuda/emulation/machine.hpp"

using namespace emulation;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  text = "error " + std::to_string(static_cast<int>(error));
  return text.c_str();
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kGpus;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kGpus) return machine().fail(cudaErrorInvalidDevice, "cudaSetDevice");
  device_of_thread = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "emulated GPU");
  p->totalGlobalMem = kMemory;
  p->major = std::getenv("SEXTANT_EMULATION_AMPERE") ? 8 : 9;
  p->multiProcessorCount = 4;
  p->l2CacheSize = 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  // An A100's where a test asks for one, or else an H100's.
  const bool ampere = std::getenv("SEXTANT_EMULATION_AMPERE") != nullptr;
  if (what == cudaDevAttrComputeCapabilityMajor) {
    *value = ampere ? 8 : 9;
    return cudaSuccess;
  }
  if (what == cudaDevAttrComputeCapabilityMinor) {
    *value = 0;
    return cudaSuccess;
  }
  if (what != cudaDevAttrMaxSharedMemoryPerBlockOptin)
    return machine().fail(cudaErrorInvalidValue, "cudaDeviceGetAttribute");
  *value = static_cast<int>(kMostShared);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  if (const auto e = uncaptured("cudaMalloc"); e != cudaSuccess) return e;
  *data = machine().allocate(bytes, true);
  return *data ? cudaSuccess : machine().fail(cudaErrorMemoryAllocation, "cudaMalloc: no memory");
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  if (const auto e = uncaptured("cudaHostAlloc"); e != cudaSuccess) return e;
  *data = machine().allocate(bytes, false);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (!data) return cudaSuccess;
  if (const auto e = uncaptured("cudaFree"); e != cudaSuccess) return e;
  for (int device = 0; device < kGpus; ++device) machine().drain_device(device);
  return machine().release(data) ? cudaSuccess : machine().fail(cudaErrorInvalidValue, "cudaFree");
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = static_cast<std::size_t>(machine().free_bytes());
  *total = kMemory;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t s) {
  if (const auto e = usable(s, "cudaMemcpyAsync"); e != cudaSuccess) return e;
  const auto target = machine().inside(to, bytes), source = machine().inside(from, bytes);
  if (!target.value_or(true) || !source.value_or(true))
    return machine().fail(cudaErrorInvalidValue, "cudaMemcpyAsync: beyond the end of a block");
  const bool pageable = !target || !source;
  if (pageable)
    if (const auto e = uncaptured("a copy of pageable memory"); e != cudaSuccess) return e;
  machine().count(pageable ? &Counts::pageable_copies : &Counts::copies);
  machine().push(
      s, {.work = [=] { std::memcpy(to, from, bytes); }, .activity = machine().activity(Activity::copy)});
  if (pageable) machine().drain(s);
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* data, std::size_t pitch, int value, std::size_t width, std::size_t height,
                              cudaStream_t s) {
  if (const auto e = usable(s, "cudaMemsetAsync"); e != cudaSuccess) return e;
  if (width > pitch || !machine().inside(data, (height - 1) * pitch + width).value_or(false))
    return machine().fail(cudaErrorInvalidValue, "cudaMemsetAsync: no memory of a GPU");
  const auto fill = [=] {
    for (std::size_t row = 0; row < height; ++row)
      std::memset(static_cast<char*>(data) + row * pitch, value, width);
  };
  machine().push(s, {.work = fill, .activity = machine().activity(Activity::fill)});
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t s) {
  return cudaMemset2DAsync(data, bytes, value, bytes, 1, s);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  if (const auto e = chosen("cudaStreamCreate"); e != cudaSuccess) return e;
  *s = machine().make_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  machine().destroy_stream(s);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (const auto e = uncaptured("cudaStreamSynchronize"); e != cudaSuccess) return e;
  machine().count(&Counts::waits);
  machine().drain(s);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void* data) {
  if (const auto e = usable(s, "cudaLaunchHostFunc"); e != cudaSuccess) return e;
  machine().push(s, {.work = [=] { function(data); }, .on_host = true});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const auto e = chosen("cudaEventCreate"); e != cudaSuccess) return e;
  *event = new CUevent_st{.device = device_of_thread, .times = (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s) {
  if (const auto e = usable(s, "cudaEventRecord"); e != cudaSuccess) return e;
  if (event->device != s->device)
    return machine().fail(cudaErrorInvalidResourceHandle, "cudaEventRecord: an event of another GPU");
  event->mark = std::make_shared<Mark>();
  machine().push(s, {.reaches = event->mark});
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned) {
  if (s && s->captured) {
    s->spoilt = true;
    return machine().fail(cudaErrorStreamCaptureIsolation, "a captured stream waits for one that is not");
  }
  if (!s || !machine().is_stream(s))
    return machine().fail(cudaErrorInvalidResourceHandle, "cudaStreamWaitEvent: no stream that was made");
  if (event->mark) machine().push(s, {.waits_for = event->mark});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const auto e = chosen("cudaEventQuery"); e != cudaSuccess) return e;
  return machine().reached(event->mark) ? cudaSuccess : machine().fail(cudaErrorNotReady, "");
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto e = uncaptured("cudaEventSynchronize"); e != cudaSuccess) return e;
  machine().count(&Counts::waits);
  machine().wait(event->mark);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  if (const auto e = chosen("cudaEventElapsedTime"); e != cudaSuccess) return e;
  if (!begin->times || !end->times || !begin->mark || !end->mark || begin->device != end->device)
    return machine().fail(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime: events without a time");
  if (!machine().reached(begin->mark) || !machine().reached(end->mark))
    return machine().fail(cudaErrorNotReady, "");
  *ms = static_cast<float>(end->mark->at_ms - begin->mark->at_ms);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  if (const auto e = usable(s, "cudaStreamBeginCapture"); e != cudaSuccess) return e;
  if (s->captured) return machine().fail(cudaErrorIllegalState, "a stream is captured twice");
  s->captured.emplace();
  s->spoilt = false;
  capturing = s;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  if (!s->captured) return machine().fail(cudaErrorIllegalState, "a stream that is not captured");
  if (capturing != s)
    return machine().fail(cudaErrorStreamCaptureWrongThread, "a capture ends on another thread");
  auto entries = std::move(*s->captured);
  s->captured.reset();
  capturing = nullptr;
  *graph = nullptr;
  if (s->spoilt) return machine().fail(cudaErrorStreamCaptureInvalidated, "the capture was spoilt");
  *graph = new CUgraph_st{std::move(entries)};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraphExec_st{graph->entries};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) {
  if (const auto e = usable(s, "cudaGraphLaunch"); e != cudaSuccess) return e;
  const Activity activity = machine().activity(Activity::kernel);
  auto entries = graph->entries;
  for (auto& entry : entries)
    if (entry.activity) entry.activity->correlation = activity.correlation;
  machine().push(s, entries);
  return cudaSuccess;
}

}  // extern "C"
