// A driver that loads whatever it is given, and runs nothing: with it cuDNN makes plans of graphs for GPUs that are not here
// and says what they take. (NVIDIA's stub of a driver refuses to load.) What cuDNN 9 looks for in libcuda.so.1, and no more.
namespace {
constexpr int kStub = 34;  // CUDA_ERROR_STUB_LIBRARY
int library, kernel;       // what handles point to
}  // namespace

extern "C" {
int cuInit(unsigned) { return kStub; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = 0, 0; }
int cuGetErrorString(int, const char** text) { return *text = "", 0; }
int cuGetErrorName(int, const char** name) { return *name = "", 0; }
int cuLibraryLoadData(void** made, const void*, int*, void**, unsigned, int*, void**, unsigned) {
  return *made = &library, 0;
}
int cuLibraryGetKernel(void** made, void*, const char*) { return *made = &kernel, 0; }
int cuLibraryUnload(void*) { return 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }

#define SEXTANT_NEVER(call) \
  int call() { return kStub; }
SEXTANT_NEVER(cuCtxGetCurrent)
SEXTANT_NEVER(cuCtxGetLimit)
SEXTANT_NEVER(cuCtxPopCurrent)
SEXTANT_NEVER(cuCtxPushCurrent)
SEXTANT_NEVER(cuDeviceGet)
SEXTANT_NEVER(cuKernelGetAttribute)
SEXTANT_NEVER(cuLaunchCooperativeKernel)
SEXTANT_NEVER(cuLaunchKernel)
SEXTANT_NEVER(cuLaunchKernelEx)
SEXTANT_NEVER(cuLibraryLoadFromFile)
SEXTANT_NEVER(cuLinkAddData)
SEXTANT_NEVER(cuLinkComplete)
SEXTANT_NEVER(cuLinkCreate)
SEXTANT_NEVER(cuLinkDestroy)
SEXTANT_NEVER(cuOccupancyMaxPotentialClusterSize)
SEXTANT_NEVER(cuStreamGetCtx)
}
