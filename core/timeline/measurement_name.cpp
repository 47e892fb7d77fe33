#include "core/timeline/measurement_name.hpp"

#include <limits>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/base/words.hpp"

namespace sextant {
namespace {

struct NameOf {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(const SquareGemm& p) const {
    const std::string alone = fmt::format("gemm {} {}x{}x{}", name(p.format), p.extent, p.extent, p.extent);
    return p.ranks > 1 ? fmt::format("{} on {} ranks", alone, p.ranks) : alone;
  }
  std::string operator()(const CopyWithin& c) const {
    return fmt::format("copy device_to_device {}B", c.bytes.v);
  }
  std::string operator()(const CopyWork& c) const { return work_key(c); }
  std::string operator()(const SmallestKernel& k) const {
    return k.by_host ? "launch by the host" : "launch";
  }
  std::string operator()(const MeasuredCollective& e) const {
    std::string text = fmt::format("{} {}B g{}", name(e.kind), e.bytes.v, e.ranks);
    if (e.nodes > 1) text += fmt::format(" nodes{}", e.nodes);
    if (e.one_device) text += " one_device";
    return text;
  }
};

// The number of "g8" after "g"; nothing where it is 0.
std::optional<int> counted(std::string_view text, std::string_view before) {
  if (!text.starts_with(before)) return std::nullopt;
  const auto value = parse_count(text.substr(before.size()), std::numeric_limits<int>::max());
  return value && *value > 0 ? std::optional(static_cast<int>(*value)) : std::nullopt;
}
// "4096B"
std::optional<Bytes> bytes(std::string_view text) {
  if (!text.ends_with('B')) return std::nullopt;
  const auto value = parse_count(text.substr(0, text.size() - 1), std::numeric_limits<std::int64_t>::max());
  return value && *value > 0 ? std::optional(Bytes(*value)) : std::nullopt;
}

// What the words may mean; its own name tells whether they do.
Measured guess(const std::vector<std::string_view>& words) {
  if (words.front() == "launch") return SmallestKernel{words.size() > 1};
  if (words.size() < 3) return {};
  if (words[0] == "gemm") {
    const auto format = dtype_from_name(words[1]);
    const auto extent = counted(split(words[2], 'x').front(), "");
    const auto ranks = words.size() > 4 ? counted(words[4], "") : 1;
    if (format && extent && ranks) return SquareGemm{*format, *extent, *ranks};
  } else if (words[0] == "copy") {
    const auto moved = bytes(words[2]);
    if (!moved) return {};
    if (const int direction = place_among(kCopyNames, words[1]); direction >= 0)
      return CopyWork{*moved, static_cast<CopyDirection>(direction)};
    return CopyWithin{*moved};
  } else if (const int kind = place_among(kCollectiveNames, words[0]); kind >= 0) {
    const auto whole = bytes(words[1]);
    const auto ranks = counted(words[2], "g");
    const int nodes = words.size() > 3 ? counted(words[3], "nodes").value_or(1) : 1;
    if (whole && ranks)
      return MeasuredCollective{static_cast<CollectiveKind>(kind), *whole, *ranks, nodes,
                                words.back() == "one_device"};
  }
  return {};
}

}  // namespace

std::string measurement_name(const Measured& of) { return std::visit(NameOf{}, of); }

Measured parse_measurement(std::string_view name) {
  const Measured of = guess(split(name, ' '));
  return measurement_name(of) == name ? of : Measured{};
}

}  // namespace sextant
