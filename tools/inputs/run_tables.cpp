#include "tools/inputs/run_tables.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "core/base/words.hpp"
#include "tools/inputs/file_kind.hpp"

namespace sextant {

namespace {

namespace fs = std::filesystem;

// The columns that must be there and an unmeasured run: LLaMA-2-13B on 64 A100.
constexpr std::array<std::pair<const char*, const char*>, 33> kExample = {{
    {"run_id", "example-1"},
    {"source", "example"},
    {"date", "2025"},
    {"framework", "Megatron-Core"},
    {"model", "llama-2-13b"},
    {"layers", "40"},
    {"hidden", "5120"},
    {"heads", "40"},
    {"kv_heads", "40"},
    {"ffn_hidden", "13824"},
    {"mlp", "gated"},
    {"vocab", "32000"},
    {"seq_len", "4096"},
    {"gpu", "A100-SXM4-80GB"},
    {"nodes", "8"},
    {"gpus_per_node", "8"},
    {"internode_GBps_per_node", "200"},
    {"tp", "2"},
    {"sequence_parallel", "1"},
    {"cp", "1"},
    {"pp", "2"},
    {"virtual_stages", "1"},
    {"dp", "16"},
    {"zero_stage", "1"},
    {"micro_batch", "1"},
    {"global_batch", "1024"},
    {"recompute", "selective"},
    {"attention", "flash2"},
    {"precision", "bf16"},
    {"overlap", "dp_grad,param_gather"},
    {"step_time_s", ""},
    {"peak_memory_GiB", ""},
    {"outcome", ""},
}};

// What was given, with the files that stand for it.
struct Given {
  std::string name;
  bool folder = false;
  std::vector<std::string> files;
};

void add_tables(const fs::path& folder, std::error_code& error, std::vector<std::string>& files) {
  std::vector<std::string> inside;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".csv" && !entry.is_directory()) inside.push_back(entry.path().string());
  std::sort(inside.begin(), inside.end());
  std::move(inside.begin(), inside.end(), std::back_inserter(files));
}

Given files_of(const std::string& name) {
  Given out{name, false, {name}};
  std::error_code error, none;
  out.folder = fs::is_directory(name, none);
  if (!out.folder) return out;
  out.files.clear();
  add_tables(name, error, out.files);
  if (const fs::path runs = fs::path(name) / "runs"; fs::is_directory(runs, none))
    add_tables(runs, none, out.files);
  if (out.files.empty())
    throw ConfigError(Problem{name, "", error ? error.message() : "a folder without CSV files",
                              "tables of measured runs, *.csv", ""});
  return out;
}

constexpr std::size_t kAll = 1000, kFew = 4;  // names in a message

// What keeps a table from being one of runs; at most `shown` missing columns are named.
std::optional<Problem> no_table_of_runs(const CsvTable& table, std::size_t shown) {
  const std::vector<std::string> missing = missing_columns(table);
  const auto known = std::count_if(kExample.begin(), kExample.end(),
                                   [&](const auto& of) { return table.column(of.first) >= 0; });
  const std::string& first = table.columns.front();
  // Fewer that are missing are told one by one, with the column that each may be.
  if (missing.size() > static_cast<std::size_t>(known))
    return Problem{
        table.file, "line 1",
        fmt::format("{} column{}", table.columns.size(), table.columns.size() == 1 ? "" : "s"),
        fmt::format("those of a table of runs, of which these are missing: {}", first_words(missing, shown)),
        table.columns.size() == 1 && first.find_first_of(";\t|") != std::string::npos
            ? "columns are separated by commas"
            : "an example: sextant validate --example"};
  if (missing.empty() && table.rows.empty())
    return Problem{table.file, "", "a header and no row", "at least one run",
                   "an example: sextant validate --example"};
  return std::nullopt;
}

void check_exists(const std::string& file) {
  if (::access(file.c_str(), F_OK) == 0 || errno != ENOENT) return;
  throw ConfigError(
      Problem{file, "", "no such file", "a table of measured runs, one line each",
              "published runs are not part of sextant: docs/accuracy.md names those behind its constants; "
              "sextant validate --example > runs.csv begins one of your own"});
}

// Rows of one question are the same but for their names.
class Questions {
 public:
  void add(const CsvTable& table, std::vector<std::size_t>& alike) {
    const int name = table.column("run_id");
    const std::string columns = fmt::format("{}", fmt::join(table.columns, "\x1f"));
    for (const CsvRow& row : table.rows) {
      std::string text = columns;
      for (std::size_t i = 0; i < row.cells.size(); ++i)
        if (static_cast<int>(i) != name) text += '\x1f' + row.cells[i];
      alike.push_back(first_.try_emplace(std::move(text), alike.size()).first->second);
    }
  }

 private:
  std::unordered_map<std::string, std::size_t> first_;
};

}  // namespace

std::string example_runs() {
  std::string header, row;
  for (const auto& [column, value] : kExample) {
    header += (header.empty() ? "" : ",") + std::string(column);
    row += (row.empty() ? "" : ",") + csv_field(value);
  }
  return header + '\n' + row + '\n';
}

// A column is one that must be there when a table of all others is refused.
std::vector<std::string> missing_columns(const CsvTable& table) {
  std::vector<std::string> out;
  for (const auto& [column, value] : kExample) {
    if (table.column(column) >= 0) continue;
    CsvTable without;
    for (const auto& [other, cell] : kExample)
      if (std::string_view(other) != column) without.columns.emplace_back(other);
    try {
      runs_of(without);
    } catch (const ConfigError&) {
      out.emplace_back(column);
    }
  }
  return out;
}

CsvTable read_run_table(const std::string& file, BadRows bad) {
  check_exists(file);
  return reading_as(FileUse::runs, file, [&] {
    CsvTable table = read_csv(file, bad);
    if (auto problem = no_table_of_runs(table, kAll)) throw ConfigError(std::move(*problem));
    return table;
  });
}

std::vector<std::string> run_files(const std::vector<std::string>& given) {
  std::vector<std::string> out;
  for (const std::string& name : given) {
    Given g = files_of(name);
    std::move(g.files.begin(), g.files.end(), std::back_inserter(out));
  }
  return out;
}

std::vector<std::string> tables_of_runs(const std::vector<std::string>& given,
                                        std::vector<std::string>& left_out) {
  std::vector<std::string> out;
  std::error_code none;
  for (const std::string& name : given) {
    if (!fs::is_directory(name, none)) {
      out.push_back(name);
      continue;
    }
    RunTables inside = read_run_tables({name});
    std::ranges::move(inside.files, std::back_inserter(out));
    std::ranges::move(inside.left_out, std::back_inserter(left_out));
  }
  return out;
}

namespace {

// Adds what was given; what keeps it from being tables of runs is thrown.
void add_tables_of(const Given& given, Questions& questions, RunTables& out) {
  std::vector<Problem> refused;
  bool any = false;
  for (const std::string& file : given.files) {
    CsvTable table;
    std::vector<RunRow> rows;
    try {
      table = given.folder ? read_csv(file, BadRows::keep) : read_run_table(file, BadRows::keep);
      if (auto problem = no_table_of_runs(table, kFew)) throw ConfigError(std::move(*problem));
      rows = runs_of(table, BadRows::keep);
    } catch (const ConfigError& e) {
      if (!given.folder) throw;
      refused.push_back(e.problems().front());
      continue;
    }
    any = true;
    out.files.push_back(file);
    questions.add(table, out.alike);
    std::move(rows.begin(), rows.end(), std::back_inserter(out.rows));
  }
  if (!any) throw ConfigError(std::move(refused));
  for (Problem& p : refused) {
    p.hint.clear();
    out.left_out.push_back(to_string(p));
  }
}

}  // namespace

RunTables read_run_tables(const std::vector<std::string>& given) {
  RunTables out;
  Questions questions;
  for (const std::string& name : given) {
    try {
      add_tables_of(files_of(name), questions, out);
    } catch (const ConfigError& e) {
      out.bad.insert(out.bad.end(), e.problems().begin(), e.problems().end());
    }
  }
  if (out.files.empty()) throw ConfigError(std::move(out.bad));
  return out;
}

}  // namespace sextant
