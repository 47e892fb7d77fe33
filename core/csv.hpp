// Comma-separated text with a header line, as spreadsheets write it: fields may be quoted, quotes inside
// doubled.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

struct CsvRow {
  int line = 0;  // in the file, from 1
  std::vector<std::string> cells;
};

struct CsvTable {
  std::string file;
  std::vector<std::string> columns;
  std::vector<CsvRow> rows;
  int column(std::string_view name) const;  // -1 when there is none
  // The cell of a row; empty when the column does not exist.
  const std::string& cell(const CsvRow&, std::string_view column) const;
};

// Throws ConfigError with file and line: unreadable file, no header, a column given twice, a row whose number
// of fields differs from the header's, an unclosed quote.
CsvTable parse_csv(std::string_view text, const std::string& file);
CsvTable read_csv(const std::filesystem::path&);

// A field as it is written: quoted when it needs to be.
std::string csv_field(std::string_view);

}  // namespace sextant
