// Tables of runs as a user names them: files, or folders of them. In a folder the tables of runs are told from others by
// their header; what was left out is said with the reason.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/runs/run_row.hpp"

namespace sextant {

struct RunTables {
  std::vector<RunRow> rows;
  std::vector<std::size_t> alike;  // of each row the first whose cells are the same but for run_id, or itself
  std::vector<std::string> files, left_out;  // read; of the folders given the others, with the reason
  std::vector<Problem> bad;                  // of what was given and cannot be read
};

// The columns that must be there and one unmeasured run, as CSV: LLaMA-2-13B on 64 A100.
std::string example_runs();

// Columns that a table of runs must have and this one has not.
std::vector<std::string> missing_columns(const CsvTable&);

// A table of runs with at least one row. Throws ConfigError on a file that is missing, is another table (with the columns
// that it lacks) or has no row; and as read_csv does.
CsvTable read_run_table(const std::string& file, BadRows);

// The files that stand for what was given, before any is read: a folder is its *.csv and those of its subfolder "runs".
// Throws ConfigError on a folder without any.
std::vector<std::string> run_files(const std::vector<std::string>& given);

// The same without those that are no table of runs, which are told with the reason; a file that was given stays.
std::vector<std::string> tables_of_runs(const std::vector<std::string>& given,
                                        std::vector<std::string>& left_out);

// Bad rows are kept as they are. What read_run_table would throw of a file that was given, or a folder without a table of
// runs, is bad; thrown when nothing else was given.
RunTables read_run_tables(const std::vector<std::string>& given);

}  // namespace sextant
