// For functions that both a host's compiler and CUDA's read: SEXTANT_BOTH before them.
#pragma once

#ifdef __CUDACC__
#define SEXTANT_BOTH __host__ __device__ __forceinline__
#else
#define SEXTANT_BOTH inline
#endif
