// A driver that shows a GPU and is too old for this build's CUDA runtime: what libcuda.so.1 is asked, and no more.
#include <cstddef>
#include <cstring>

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 12040, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int, int) { return std::strcpy(name, "NVIDIA H200"), 0; }
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = std::size_t{140} << 30, 0; }
}
