// One block of a kernel on a host's thread: its threads are fibers, of which any that may run is next, chosen at
// random, so that what only luck keeps in order shows. A barrier that some threads reach elsewhere, a call of a warp
// that not all of its lanes make, and a lane that has ended are found and thrown as Fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>

#include <vector_types.h>

namespace emulation {

struct Launch {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  const void* kernel = nullptr;
};

struct Thread {
  uint3 thread, block;
  unsigned lane;
  const Launch* launch;
};
Thread& self();

struct WarpCall {
  enum Kind { shuffle, ballot, maximum, minimum } kind;
  unsigned line;
  std::uint64_t value;
  unsigned from;  // of a shuffle: the lane whose value is wanted
};
std::uint64_t warp(unsigned mask, const WarpCall&);
bool barrier(unsigned line, bool vote = false);  // whether any thread has voted

// Fresh for each block, every byte 0xff, which is NaN in every format.
void* dynamic_shared_bytes();
void* shared_bytes(const void* declaration, std::size_t bytes);

class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// All blocks of the grid, one after another in an order by chance. From one thread of the host at a time.
void run_grid(const Launch&, const std::function<void()>& kernel);

// A generator whose seed is told with a fault: SEXTANT_EMULATION_SEED repeats a run.
std::uint64_t chance();
std::uint64_t seed();

}  // namespace emulation
