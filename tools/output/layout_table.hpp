// Layouts as rows of a table, and as JSON: the same columns in every answer of the planner, with others before and after.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/search/search.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {

class LayoutTable {
 public:
  LayoutTable(const std::vector<Column>& before, const std::vector<Column>& after);
  void add(std::vector<std::string> before, const RankedPlan&, const std::vector<std::string>& after,
           bool bold = false);
  // A row of which only the first columns are known.
  void add_empty(std::vector<std::string> before, const std::string& why);
  // With the chance of running out of memory where it is at least 1 in 20 for one of them, or `wide`.
  std::string render(const Terminal&, bool wide) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    bool bold;
  };
  std::size_t before_, after_;
  std::vector<Column> columns_;
  std::vector<Row> rows_;
  bool may_overflow_ = false;
};

// "tie", "14.2", or nothing for the first.
std::string slower_text(const RankedPlan&, bool first);

// A prediction with "slower_share" and "tie".
nlohmann::ordered_json ranked_json(const RankedPlan&);

}  // namespace sextant
