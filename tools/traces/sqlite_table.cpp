#include "tools/traces/sqlite_table.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <sqlite3.h>

#include "core/base/error.hpp"

namespace sextant {

void SqliteFile::Close::operator()(sqlite3* file) const { sqlite3_close_v2(file); }

void SqliteFile::fail() const {
  throw ConfigError(Problem{path_, "", file_ ? sqlite3_errmsg(file_.get()) : "cannot be opened",
                            "what 'nsys export -t sqlite' writes",
                            "was it copied whole? Export the report again"});
}

SqliteFile::SqliteFile(const std::filesystem::path& path) : path_(path.string()) {
  sqlite3* file = nullptr;
  const int code = sqlite3_open_v2(path_.c_str(), &file, SQLITE_OPEN_READONLY, nullptr);
  file_.reset(file);
  if (code != SQLITE_OK) fail();
}

bool SqliteFile::has(const std::string& table) const { return has(table, ""); }

bool SqliteFile::has(const std::string& table, std::string_view column) const {
  bool found = false;
  each(fmt::format("PRAGMA table_info('{}')", table),
       [&](const Row& row) { found = found || column.empty() || row.text(1) == column; });
  return found;
}

void SqliteFile::each(const std::string& query, const std::function<void(const Row&)>& take) const {
  sqlite3_stmt* prepared = nullptr;
  if (sqlite3_prepare_v2(file_.get(), query.c_str(), -1, &prepared, nullptr) != SQLITE_OK) fail();
  const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(prepared, sqlite3_finalize);
  for (;;) {
    const int code = sqlite3_step(prepared);
    if (code == SQLITE_DONE) return;
    if (code != SQLITE_ROW) fail();
    take(Row(prepared));
  }
}

std::int64_t SqliteFile::Row::whole(int column) const { return sqlite3_column_int64(at_, column); }
bool SqliteFile::Row::is_null(int column) const { return sqlite3_column_type(at_, column) == SQLITE_NULL; }
std::string SqliteFile::Row::text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(at_, column));
  return text ? std::string(text, static_cast<std::size_t>(sqlite3_column_bytes(at_, column)))
              : std::string();
}

}  // namespace sextant
