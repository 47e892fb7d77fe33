#include "tools/report/quantity_text.hpp"

#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

std::string seconds_text(double seconds) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size >= 100) return fmt::format("{:.1f} s", seconds);
  if (size >= 1) return fmt::format("{:.3f} s", seconds);
  if (size >= 1e-3) return fmt::format("{:.2f} ms", 1e3 * seconds);
  return fmt::format("{:.1f} µs", 1e6 * seconds);
}

std::string gib_text(double GiB) {
  const double size = std::abs(GiB);
  return fmt::format("{:.{}f}", GiB, size >= 10 ? 1 : size >= 0.1 || size == 0 ? 2 : 4);
}

std::string share_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string signed_share_text(double share) { return fmt::format("{:+.1f} %", 100 * share); }

std::string count_words(double n) {
  return n < 0 || n > 1.8e19 ? fmt::format("{:.3g}", n)
                             : count_text(static_cast<std::uint64_t>(std::llround(n)));
}

std::string part_text(std::string_view part) {
  std::string text = words(part);
  for (const std::string_view degree : {" tp", " cp", " pp", " dp"})
    if (text.ends_with(degree))
      for (std::size_t i = text.size() - 2; i < text.size(); ++i)
        text[i] = static_cast<char>(text[i] - 'a' + 'A');
  return text;
}

std::string rate_text(double per_s) {
  return per_s >= 1000 && per_s < 1e15 ? with_thousands(static_cast<std::uint64_t>(std::llround(per_s)))
                                       : fmt::format("{:.4g}", per_s);
}

}  // namespace sextant
