// Layouts as rows of a table, and as JSON: the same columns in every answer of the planner, with others before and after.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/search.hpp"
#include "tools/table.hpp"

namespace sextant {

class LayoutTable {
 public:
  LayoutTable(const std::vector<Column>& before, const std::vector<Column>& after);
  void add(std::vector<std::string> before, const RankedPlan&, const std::vector<std::string>& after,
           bool bold = false);
  // A row of which only the first columns are known.
  void add_empty(std::vector<std::string> before, const std::string& why);
  std::string render(const Terminal& terminal, bool wide) const { return table_.render(terminal, wide); }

 private:
  std::size_t after_;
  Table table_;
};

// "tie", "14.2", or nothing for the first.
std::string slower_text(const RankedPlan&, bool first);

// A prediction with "slower_share" and "tie".
nlohmann::ordered_json ranked_json(const RankedPlan&);

}  // namespace sextant
