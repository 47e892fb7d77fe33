#include "cost_models/gemm.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace sextant {

int alignment_of(std::int64_t rows, std::int64_t columns) {
  const auto both = static_cast<std::uint64_t>(rows | columns);
  if (both == 0) return 16;
  return static_cast<int>(std::min<std::uint64_t>(16, both & (~both + 1)));
}

// Source: tile sizes and the wave model (a wave that is begun takes as long as a full one) are those of NVIDIA's "Matrix
// multiplication background"; relative tile rates are fitted (constants file). Units: elements, seconds. Limits: within
// 20 % on single shapes between 512 and 65536 per side; exact-shape tables replace it.
OpCost price_gemm(const Gemm& g, const Machine& machine, double bonus) {
  if (g.m <= 0 || g.n <= 0 || g.k <= 0) return {};
  const CostConstants& c = machine.constants;
  struct Tile {
    int m, n;
    double rate;
  };
  const std::array<Tile, 5> tiles = {{{256, 128, 1.0},
                                      {128, 256, 1.0},
                                      {128, 128, c.gemm_tile_128},
                                      {128, 64, c.gemm_tile_64},
                                      {64, 128, c.gemm_tile_64}}};
  const double align = g.alignment >= 16 ? 1.0 : c.gemm_misaligned;
  const double depth = static_cast<double>(g.k) + c.gemm_depth_overhead;
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& t : tiles) {
    const std::int64_t count = ((g.m + t.m - 1) / t.m) * ((g.n + t.n - 1) / t.n);
    const double waves = std::ceil(static_cast<double>(count) / machine.tiles_at_once);
    best = std::min(best, waves * t.m * t.n / t.rate);
  }
  const double peak = machine.peak[static_cast<std::size_t>(g.dtype)];
  const double per_tile = peak / machine.tiles_at_once * c.gemm_efficiency * bonus * align *
                          (g.dtype == Dtype::fp8 ? c.gemm_fp8_relative : 1.0);
  const double compute = 2.0 * best * depth / per_tile;

  const double m = static_cast<double>(g.m), n = static_cast<double>(g.n), k = static_cast<double>(g.k);
  const double out_bytes = std::max(2, size_bytes(g.dtype));  // fp8 GEMMs write 16 bits
  const double bytes = size_bytes(g.dtype) * (m * k + k * n) + out_bytes * m * n;
  const double memory = bytes / machine.memory_rate;
  OpCost cost;
  cost.compute = Seconds(compute);
  cost.memory = Seconds(memory);
  cost.latency = Seconds(machine.launch);
  cost.duration = Seconds(std::max(compute, memory) + machine.launch);
  return cost;
}

double efficiency(const Gemm& g, const Machine& machine, double bonus) {
  const double flops = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  return flops / price_gemm(g, machine, bonus).duration.v / machine.peak[static_cast<std::size_t>(g.dtype)];
}

}  // namespace sextant
