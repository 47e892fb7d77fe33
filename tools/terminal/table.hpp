// A table that fits the terminal: columns that matter least are dropped, in a fixed order, until the rest
// fits; then the widest text column is shortened. Never wraps. Units stand in the header.
#pragma once

#include <string>
#include <vector>

#include "tools/terminal/terminal.hpp"

namespace sextant {

enum class Align { left, right };

struct Column {
  std::string header;
  Align align = Align::right;
  int drop = 0;  // 0: never dropped; otherwise the highest number goes first
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add_row(std::vector<std::string> cells);  // as many as there are columns
  void emphasize_last_row() { bold_rows_.push_back(rows_.size() - 1); }
  bool empty() const { return rows_.empty(); }

  // With `wide` nothing is dropped or shortened. Ends with a line that names what was dropped.
  std::string render(const Terminal&, bool wide = false) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> bold_rows_;
};

}  // namespace sextant
