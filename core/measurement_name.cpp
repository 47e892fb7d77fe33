#include "core/measurement_name.hpp"

#include <charconv>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace sextant {
namespace {

struct NameOf {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(const SquareProduct& p) const {
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
  std::string operator()(const Exchange& e) const {
    std::string text = fmt::format("{} {}B g{}", name(e.kind), e.bytes.v, e.ranks);
    if (e.nodes > 1) text += fmt::format(" nodes{}", e.nodes);
    if (e.one_device) text += " one_device";
    return text;
  }
};

std::vector<std::string_view> cut(std::string_view text, char at) {
  std::vector<std::string_view> out;
  for (std::size_t end = 0; end != text.npos; text.remove_prefix(end == text.npos ? 0 : end + 1))
    end = text.find(at), out.push_back(text.substr(0, end));
  return out;
}

// "g8" after "g".
std::optional<std::int64_t> positive_number(std::string_view text, std::string_view before,
                                            std::string_view behind = "") {
  if (!text.starts_with(before) || !text.ends_with(behind)) return std::nullopt;
  text.remove_prefix(before.size()), text.remove_suffix(behind.size());
  std::int64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value <= 0) return std::nullopt;
  return value;
}

template <std::size_t N>
std::optional<std::size_t> among(const std::array<std::string_view, N>& names, std::string_view text) {
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == text) return i;
  return std::nullopt;
}

// What the words may mean; its own name tells whether they do.
Measured guess(const std::vector<std::string_view>& words) {
  if (words.front() == "launch") return SmallestKernel{words.size() > 1};
  if (words.size() < 3) return {};
  if (words[0] == "gemm") {
    const auto format = dtype_from_name(words[1]);
    const auto extent = positive_number(cut(words[2], 'x').front(), "");
    const auto ranks = words.size() > 4 ? positive_number(words[4], "") : 1;
    if (format && extent && ranks) return SquareProduct{*format, *extent, static_cast<int>(*ranks)};
  } else if (words[0] == "copy") {
    const auto bytes = positive_number(words[2], "", "B");
    if (!bytes) return {};
    if (const auto direction = among(kCopyNames, words[1]))
      return CopyWork{Bytes(*bytes), static_cast<CopyDirection>(*direction)};
    return CopyWithin{Bytes(*bytes)};
  } else if (const auto kind = among(kCollectiveNames, words[0])) {
    const auto bytes = positive_number(words[1], "", "B"), ranks = positive_number(words[2], "g");
    const auto nodes = words.size() > 3 ? positive_number(words[3], "nodes").value_or(1) : 1;
    if (bytes && ranks)
      return Exchange{static_cast<CollectiveKind>(*kind), Bytes(*bytes), static_cast<int>(*ranks),
                      static_cast<int>(nodes), words.back() == "one_device"};
  }
  return {};
}

}  // namespace

std::string measurement_name(const Measured& of) { return std::visit(NameOf{}, of); }

Measured parse_measurement(std::string_view name) {
  const Measured of = guess(cut(name, ' '));
  return measurement_name(of) == name ? of : Measured{};
}

}  // namespace sextant
