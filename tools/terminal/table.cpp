#include "tools/terminal/table.hpp"

#include <algorithm>

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

// Which columns a terminal shows, and how wide.
struct ShownColumns {
  std::vector<int> width;  // by column of the table
  std::vector<std::size_t> shown, dropped;
  int total() const {
    int sum = -kGap;
    for (const std::size_t c : shown) sum += width[c] + kGap;
    return sum;
  }
};

// Leaves out what may be left out, and then cuts the widest texts, until the table fits.
void fit_into(int terminal_columns, const std::vector<Column>& columns, ShownColumns& s) {
  while (s.total() > terminal_columns) {
    const auto next = std::max_element(s.shown.begin(), s.shown.end(), [&](std::size_t a, std::size_t b) {
      return columns[a].drop < columns[b].drop;
    });
    if (columns[*next].drop == 0) break;
    s.dropped.push_back(*next);
    s.shown.erase(next);
  }
  for (int excess = s.total() - terminal_columns; excess > 0;) {
    const auto widest = std::max_element(s.shown.begin(), s.shown.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(columns[a].align == Align::left, s.width[a]) <
             std::pair(columns[b].align == Align::left, s.width[b]);
    });
    if (columns[*widest].align != Align::left || s.width[*widest] <= kShortest) break;
    const int cut = std::min(excess, s.width[*widest] - kShortest);
    s.width[*widest] -= cut;
    excess -= cut;
  }
  std::sort(s.dropped.begin(), s.dropped.end());
}

}  // namespace

void Table::add_row(std::vector<std::string> cells) {
  SEXTANT_CHECK(cells.size() == columns_.size(), "a row has as many cells as the table has columns");
  rows_.push_back(std::move(cells));
}

std::string Table::render(const Terminal& terminal, bool wide) const {
  ShownColumns fitted;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    fitted.shown.push_back(c);
    fitted.width.push_back(display_width(columns_[c].header));
    for (const auto& row : rows_) fitted.width[c] = std::max(fitted.width[c], display_width(row[c]));
  }
  if (!wide) fit_into(terminal.columns, columns_, fitted);
  const std::vector<int>& width = fitted.width;
  const std::vector<std::size_t>& shown = fitted.shown;
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
  if (!fitted.dropped.empty()) {
    std::vector<std::string> names;
    for (const std::size_t c : fitted.dropped) names.push_back(columns_[c].header);
    const std::string note = fmt::format("(not shown: {}; --wide shows all)", fmt::join(names, ", "));
    for (const auto& text : wrap(note, terminal.columns))
      out += paint(terminal.color, Style::dim, text) + '\n';
  }
  return out;
}

}  // namespace sextant
