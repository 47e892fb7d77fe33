#include "planner/calibration/launcher_tags.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/shallow_json.hpp"
#include "core/plan/parallel_plan.hpp"
#include "planner/calibration/collector_tags.hpp"
#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

// The outer launcher's rank and the inner one's: a node of srun -l and a process of torchrun on it.
using Rank = std::pair<long long, long long>;

struct Tagged {
  std::string_view line;
  std::optional<Rank> rank;
  LineTag tag;
};

struct Tag {
  long long number;
  std::optional<int> LineTag::*of;
};

std::size_t digits_at(std::string_view s, std::size_t at) {
  const std::size_t end = std::min(s.find_first_not_of("0123456789", at), s.size());
  return end - std::min(at, end);
}

enum class Lines : std::uint8_t { plain, numbered };

// The rank of the tag that `line` begins with, which is taken off: "[1,3]<stdout>: text", "[rank3]: text" or "[default3]: text";
// "3: text" only of `numbered` lines, since times and lists look alike.
std::optional<Tag> take_tag(std::string_view& line, Lines lines) {
  const auto taken = [&](std::size_t from, std::size_t digits, std::size_t end,
                         std::optional<int> LineTag::*of) -> std::optional<Tag> {
    const auto number = whole_number(line.substr(from, digits));
    if (!number) return std::nullopt;
    line.remove_prefix(std::min(end, line.size()));
    if (line.starts_with(' ')) line.remove_prefix(1);
    return Tag{*number, of};
  };
  if (line.starts_with('[')) {
    const std::size_t job = digits_at(line, 1);
    if (job > 0 && line.substr(1 + job).starts_with(',')) {
      const std::size_t from = job + 2, digits = digits_at(line, from);
      for (const std::string_view stream : {"]<stdout>:", "]<stderr>:", "]:"})
        if (digits > 0 && line.substr(from + digits).starts_with(stream))
          return taken(from, digits, from + digits + stream.size(), &LineTag::task);
    }
    std::size_t word = 1;
    while (word < line.size() && std::isalpha(static_cast<unsigned char>(line[word])) != 0) ++word;
    if (const std::size_t digits = digits_at(line, word);
        word > 1 && digits > 0 && line.substr(word + digits).starts_with("]:"))
      return taken(word, digits, word + digits + 2,
                   line.substr(1, word - 1) == kMachineTag ? &LineTag::machine : &LineTag::local);
  }
  if (lines == Lines::numbered) {
    const std::size_t blanks = std::min(line.find_first_not_of(' '), line.size()),
                      digits = digits_at(line, blanks);
    if (digits > 0 && line.substr(blanks + digits).starts_with(':'))
      return taken(blanks, digits, blanks + digits + 1, &LineTag::task);
  }
  return std::nullopt;
}

Tagged tagged(std::string_view line, Lines lines) {
  Tagged out{line, {}, {}};
  const auto keep = [&](const Tag& tag) {
    if (tag.number <= kMaxWorld) out.tag.*tag.of = static_cast<int>(tag.number);
  };
  const auto outer = take_tag(out.line, lines);
  if (!outer) return out;
  const auto inner = take_tag(out.line, Lines::plain);
  keep(*outer);
  if (inner) keep(*inner);
  out.rank = Rank{outer->number, inner ? inner->number : 0};
  return out;
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

// {"log":"a line\n","stream":"stdout","time":"..."}, as Docker's json-file driver writes them. Any other line stays.
std::string out_of_docker(std::string text) {
  constexpr std::string_view kLog = "{\"log\":";
  if (!text.starts_with(kLog)) return text;
  std::string out;
  each_line(text, [&](std::string_view line, int) {
    const auto j = json_or_discarded(line);
    const auto log = j.is_object() ? j.find("log") : j.end();
    if (j.is_object() && log != j.end() && log->is_string()) {
      std::string inside = *log;
      std::erase(inside, '\n');
      out += inside;
    } else {
      out += line;
    }
    out += '\n';
  });
  return out;
}

}  // namespace

std::string without_launcher_tags(std::string_view text, const std::function<bool(std::string_view)>& counts,
                                  std::vector<LineTag>* tags) {
  std::string plain = without_collector_tags(without_colours(out_of_docker(std::string(text))));
  int lines = 0, numbers = 0;
  each_line(plain, [&](std::string_view line, int) {
    if (line.find_first_not_of(" \r") == std::string_view::npos) return;
    ++lines;
    if (tagged(line, Lines::plain).rank == std::nullopt && tagged(line, Lines::numbered).rank) ++numbers;
  });
  const Lines are =
      lines > 0 && numbers * 10 >= lines * 9 ? Lines::numbered : Lines::plain;  // srun -l numbers every line
  std::optional<Rank> lowest, counting;
  each_line(plain, [&](std::string_view line, int) {
    const Tagged t = tagged(line, are);
    if (!t.rank) return;
    lowest = std::min(lowest.value_or(*t.rank), *t.rank);
    if (counts && counts(t.line)) counting = std::min(counting.value_or(*t.rank), *t.rank);
  });
  if (!lowest) return plain;
  std::string out;
  out.reserve(plain.size());
  each_line(plain, [&](std::string_view line, int) {
    const Tagged t = tagged(line, are);
    if (tags) tags->push_back(t.tag);
    if (!t.rank || *t.rank == *lowest || t.rank == counting) out += t.line;
    out += '\n';
  });
  if (!plain.ends_with('\n') && !out.empty()) out.pop_back();
  return out;
}

}  // namespace sextant
