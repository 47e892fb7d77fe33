#include "core/base/csv.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"

namespace sextant {

namespace {

[[noreturn]] void bad(const std::string& file, int line, std::string found, std::string expected) {
  throw ConfigError(Problem{file, fmt::format("line {}", line), std::move(found), std::move(expected), ""});
}

// One record from `at`, which moves behind it. Quoted fields may hold commas and line ends.
std::vector<std::string> record(std::string_view text, std::size_t& at, int& line, const std::string& file) {
  std::vector<std::string> cells(1);
  const int first_line = line;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '"' && at + 1 < text.size() && text[at + 1] == '"') {
        cells.back() += text[++at];
      } else if (c == '"') {
        quoted = false;
      } else {
        cells.back() += c;
        line += c == '\n';
      }
    } else if (c == '"' && cells.back().empty()) {
      quoted = true;
    } else if (c == ',') {
      cells.emplace_back();
    } else if (c == '\n') {
      ++at;
      ++line;
      return cells;
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  if (quoted) bad(file, first_line, "", "a closing quote");
  ++line;
  return cells;
}

}  // namespace

int CsvTable::column(std::string_view name) const {
  const auto it = std::find(columns.begin(), columns.end(), name);
  return it == columns.end() ? -1 : static_cast<int>(it - columns.begin());
}

const std::string& CsvTable::cell(const CsvRow& row, std::string_view name) const {
  static const std::string kEmpty;
  const int c = column(name);
  return c < 0 || c >= static_cast<int>(row.cells.size()) ? kEmpty : row.cells[static_cast<std::size_t>(c)];
}

CsvTable parse_csv(std::string_view text, const std::string& file, BadRows bad_rows) {
  CsvTable table;
  table.file = file;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // byte-order mark of spreadsheets
  if (const auto nul = text.find('\0'); nul != text.npos)
    bad(file,
        1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(nul), '\n')),
        "a NUL byte", "text in UTF-8");
  std::size_t at = 0;
  int line = 1;
  if (text.empty()) bad(file, 1, "an empty file", "a header line with column names");
  table.columns = record(text, at, line, file);
  for (std::size_t i = 0; i < table.columns.size(); ++i)
    if (std::find(table.columns.begin(), table.columns.begin() + static_cast<std::ptrdiff_t>(i),
                  table.columns[i]) != table.columns.begin() + static_cast<std::ptrdiff_t>(i))
      bad(file, 1, table.columns[i], "each column once");
  while (at < text.size()) {
    CsvRow row;
    row.line = line;
    row.cells = record(text, at, line, file);
    if (row.cells.size() == 1 && row.cells[0].empty()) continue;  // a blank line
    while (row.cells.size() > table.columns.size() && row.cells.back().empty()) row.cells.pop_back();
    if (row.cells.size() != table.columns.size() && bad_rows == BadRows::refuse)
      bad(file, row.line, fmt::format("{} cells", row.cells.size()),
          fmt::format("{}, as the header line has", table.columns.size()));
    table.rows.push_back(std::move(row));
  }
  return table;
}

CsvTable read_csv(const std::filesystem::path& path, BadRows bad_rows) {
  return parse_csv(read_text_file(path), path.string(), bad_rows);
}

std::string csv_field(std::string_view s) {
  if (s.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(s);
  std::string out = "\"";
  for (const char c : s) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace sextant
