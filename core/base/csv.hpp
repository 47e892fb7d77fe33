// Comma-separated text with a header line, as spreadsheets write it: fields may be quoted, quotes inside
// doubled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

struct CsvRow {
  int line = 0;  // in the file, from 1
  std::vector<std::string> cells;
};

// Bad rows are kept, so that one does not hide the others, or end the reading.
enum class BadRows : std::uint8_t { refuse, keep };

struct CsvTable {
  std::string file;
  std::vector<std::string> columns;
  std::vector<CsvRow> rows;
  int column(std::string_view name) const;  // -1 when there is none
  // The cell of a row; empty when the column does not exist, or the row is too short.
  const std::string& cell(const CsvRow&, std::string_view column) const;
};

// Throws ConfigError with file and line: unreadable file, no header, a column given twice, an unclosed quote; and, unless
// bad rows are kept, a row whose number of fields differs from the header's. Empty fields beyond it are dropped.
CsvTable parse_csv(std::string_view text, const std::string& file, BadRows = BadRows::refuse);
CsvTable read_csv(const std::filesystem::path&, BadRows = BadRows::refuse);

// A field as it is written: quoted when it needs to be.
std::string csv_field(std::string_view);

}  // namespace sextant
