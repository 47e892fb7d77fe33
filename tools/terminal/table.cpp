#include "tools/terminal/table.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

namespace {
constexpr int kGap = 2;
constexpr int kShortest = 8;  // a text column is not cut below this

// The first `width` columns of the text, the last of them an ellipsis.
std::string shortened(const std::string& text, int width, bool utf8) {
  if (display_width(text) <= width) return text;
  const std::string_view ellipsis = utf8 ? "…" : "...";
  const int keep = std::max(0, width - display_width(ellipsis));
  std::size_t end = 0;
  for (int columns = 0; end < text.size(); ++end)
    if ((static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80U && ++columns > keep) break;
  return text.substr(0, end) + std::string(ellipsis);
}

std::string padded(const std::string& text, int width, Align align) {
  const std::string space(static_cast<std::size_t>(std::max(0, width - display_width(text))), ' ');
  return align == Align::left ? text + space : space + text;
}
}  // namespace

void Table::add_row(std::vector<std::string> cells) {
  SEXTANT_CHECK(cells.size() == columns_.size(), "a row has as many cells as the table has columns");
  rows_.push_back(std::move(cells));
}

std::string Table::render(const Terminal& terminal, bool wide) const {
  std::vector<int> width(columns_.size());
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    width[c] = display_width(columns_[c].header);
    for (const auto& row : rows_) width[c] = std::max(width[c], display_width(row[c]));
  }
  std::vector<std::size_t> shown(columns_.size());
  std::iota(shown.begin(), shown.end(), std::size_t{0});
  const auto total = [&] {
    int sum = -kGap;
    for (const std::size_t c : shown) sum += width[c] + kGap;
    return sum;
  };
  std::vector<std::size_t> dropped;
  while (!wide && total() > terminal.columns) {
    const auto next = std::max_element(shown.begin(), shown.end(), [&](std::size_t a, std::size_t b) {
      return columns_[a].drop < columns_[b].drop;
    });
    if (columns_[*next].drop == 0) break;
    dropped.push_back(*next);
    shown.erase(next);
  }
  for (int excess = total() - terminal.columns; !wide && excess > 0;) {
    const auto widest = std::max_element(shown.begin(), shown.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(columns_[a].align == Align::left, width[a]) <
             std::pair(columns_[b].align == Align::left, width[b]);
    });
    if (columns_[*widest].align != Align::left || width[*widest] <= kShortest) break;
    const int cut = std::min(excess, width[*widest] - kShortest);
    width[*widest] -= cut;
    excess -= cut;
  }

  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const std::size_t c = shown[i];
      if (i > 0) text.append(kGap, ' ');
      text += padded(shortened(cell_of(c), width[c], terminal.utf8), width[c], columns_[c].align);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::string out =
      paint(terminal.color, Style::bold, line([&](std::size_t c) { return columns_[c].header; })) + '\n';
  for (std::size_t i = 0; i < shown.size(); ++i) {
    if (i > 0) out.append(kGap, ' ');
    for (int k = 0; k < width[shown[i]]; ++k) out += terminal.utf8 ? "─" : "-";
  }
  out += '\n';
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const std::string text = line([&](std::size_t c) { return rows_[r][c]; });
    const bool bold = std::find(bold_rows_.begin(), bold_rows_.end(), r) != bold_rows_.end();
    out += (bold ? paint(terminal.color, Style::bold, text) : text) + '\n';
  }
  if (!dropped.empty()) {
    std::sort(dropped.begin(), dropped.end());
    std::vector<std::string> names;
    for (const std::size_t c : dropped) names.push_back(columns_[c].header);
    const std::string note = fmt::format("(not shown: {}; --wide shows all)", fmt::join(names, ", "));
    for (const auto& text : wrap(note, terminal.columns))
      out += paint(terminal.color, Style::dim, text) + '\n';
  }
  return out;
}

}  // namespace sextant
