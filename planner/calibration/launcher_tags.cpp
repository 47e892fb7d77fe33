#include "planner/calibration/launcher_tags.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

struct Tagged {
  std::string_view line;
  std::optional<long long> rank;
};

std::size_t digits_at(std::string_view s, std::size_t at) {
  const std::size_t end = std::min(s.find_first_not_of("0123456789", at), s.size());
  return end - std::min(at, end);
}

// "[1,3]<stdout>: text" or "[rank3]: text"; "3: text" only where `numbered`, since times and lists look alike.
Tagged tagged(std::string_view line, bool numbered) {
  const std::string_view whole = line;
  const auto taken = [&](std::size_t from, std::size_t digits, std::size_t end) -> Tagged {
    const auto rank = whole_number(whole.substr(from, digits));
    if (!rank) return {whole, {}};
    std::string_view rest = whole.substr(std::min(end, whole.size()));
    if (rest.starts_with(' ')) rest.remove_prefix(1);
    return {rest, rank};
  };
  if (line.starts_with('[')) {
    const std::size_t job = digits_at(line, 1);
    if (job > 0 && line.substr(1 + job).starts_with(',')) {
      const std::size_t from = job + 2, digits = digits_at(line, from);
      for (const std::string_view stream : {"]<stdout>:", "]<stderr>:", "]:"})
        if (digits > 0 && line.substr(from + digits).starts_with(stream))
          return taken(from, digits, from + digits + stream.size());
    }
    if (line.starts_with("[rank")) {
      const std::size_t digits = digits_at(line, 5);
      if (digits > 0 && line.substr(5 + digits).starts_with("]:")) return taken(5, digits, 7 + digits);
    }
  }
  if (numbered) {
    const std::size_t blanks = std::min(line.find_first_not_of(' '), line.size()),
                      digits = digits_at(line, blanks);
    if (digits > 0 && line.substr(blanks + digits).starts_with(':'))
      return taken(blanks, digits, blanks + digits + 1);
  }
  return {whole, {}};
}

// ESC [ numbers letter.
std::string without_colours(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
      const std::size_t end = text.find_first_not_of("0123456789;", i + 2);
      if (end == std::string_view::npos) break;
      i = end;
      continue;
    }
    out += text[i];
  }
  return out;
}

}  // namespace

std::string without_launcher_tags(std::string_view text) {
  const std::string plain = without_colours(text);
  int lines = 0, numbers = 0;
  each_line(plain, [&](std::string_view line, int) {
    if (line.find_first_not_of(" \r") == std::string_view::npos) return;
    ++lines;
    if (tagged(line, false).rank == std::nullopt && tagged(line, true).rank) ++numbers;
  });
  const bool numbered = lines > 0 && numbers * 10 >= lines * 9;  // srun -l numbers every line
  std::optional<long long> lowest;
  each_line(plain, [&](std::string_view line, int) {
    if (const auto rank = tagged(line, numbered).rank) lowest = std::min(lowest.value_or(*rank), *rank);
  });
  if (!lowest) return plain;
  std::string out;
  out.reserve(plain.size());
  each_line(plain, [&](std::string_view line, int) {
    const Tagged t = tagged(line, numbered);
    if (!t.rank || *t.rank == *lowest) out += t.line;
    out += '\n';
  });
  if (!plain.ends_with('\n') && !out.empty()) out.pop_back();
  return out;
}

}  // namespace sextant
