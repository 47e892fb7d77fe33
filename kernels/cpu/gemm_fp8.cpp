// Products in fp8 on a CPU: what a GPU's codes stand for, multiplied as bf16. Codes have fewer bits than a bf16 and scales are
// powers of two, so each operand is exact; sums are fp32 or better, as on the GPU in another order.
#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"
#include "kernels/parallel.hpp"

namespace sextant::cpu {
namespace {

std::uint32_t most_of(const TensorView& x) {
  std::uint32_t most = 0;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const Bfloat16* row = x.row<Bfloat16>(r);
    most = std::max(most, max_lanes<std::uint32_t>(x.cols, 0u, [&](std::int64_t i) {
                      return std::uint32_t{row[i].bits} & 0x7fffu;
                    }));
  }
  return most;
}

// bf16 has 2^16 values: what each becomes under a scale is looked up, in one of some dozen tables.
using Table = std::vector<Bfloat16>;
const Table& table_of(const fp8::Scale& scale, Fp8 format) {
  constexpr std::size_t kMostTables = 64;  // of 128 KiB
  thread_local std::map<std::pair<std::uint32_t, Fp8>, Table> tables;
  const std::pair key(fp8::bits_of(scale.down), format);
  if (const auto found = tables.find(key); found != tables.end()) return found->second;
  if (tables.size() >= kMostTables) tables.clear();
  Table& table = tables[key];
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = load(Bfloat16{static_cast<std::uint16_t>(bits)});
    table.push_back(store<Bfloat16>(fp8::decode(fp8::encode(x * scale.up, format), format) * scale.down));
  }
  return table;
}

void round(const TensorView& x, Fp8 format, const TensorView& to) {
  const Table& table = table_of(fp8::scale_of(most_of(x), format), format);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const Bfloat16* from = x.row<Bfloat16>(r);
    Bfloat16* out = to.row<Bfloat16>(r);
    for (std::int64_t i = 0; i < x.cols; ++i) out[i] = table[from[i].bits];
  }
}

}  // namespace

void gemm_fp8(const GemmArgs& g, void (*product)(const GemmArgs&)) {
  SEXTANT_CHECK(g.round_a != Fp8::none && g.round_b != Fp8::none, "gemm: both operands in fp8, or none");
  SEXTANT_CHECK(g.a.dtype == Dtype::bf16 && g.b.dtype == Dtype::bf16, "gemm: fp8 is made of bf16");
  thread_local std::array<std::vector<Bfloat16>, 2> rooms;
  const auto rounded = [&](std::size_t room, const TensorView& x, Fp8 format) {
    rooms[room].resize(std::max(rooms[room].size(), static_cast<std::size_t>(x.elements())));
    const TensorView to(rooms[room].data(), Dtype::bf16, x.rows, x.cols);
    round(x, format, to);
    return to;
  };
  GemmArgs exact = g;
  exact.a = rounded(0, g.a, g.round_a);
  exact.b = rounded(1, g.b, g.round_b);
  exact.round_a = exact.round_b = Fp8::none;
  product(exact);
}

}  // namespace sextant::cpu
