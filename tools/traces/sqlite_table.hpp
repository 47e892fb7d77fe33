// A database of SQLite that is only read: which tables and columns it has, and rows by name of column.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct sqlite3;
struct sqlite3_stmt;

namespace sextant {

class SqliteFile {
 public:
  // Throws ConfigError when it is no database or is damaged.
  explicit SqliteFile(const std::filesystem::path&);

  bool has(const std::string& table) const;
  bool has(const std::string& table, std::string_view column) const;

  class Row {
   public:
    explicit Row(sqlite3_stmt* at) : at_(at) {}
    std::int64_t whole(int column) const;  // 0 where there is none
    std::string text(int column) const;
    bool is_null(int column) const;

   private:
    sqlite3_stmt* at_;
  };
  // Throws ConfigError with the library's words.
  void each(const std::string& query, const std::function<void(const Row&)>&) const;

 private:
  struct Close {
    void operator()(sqlite3*) const;
  };
  [[noreturn]] void fail() const;
  std::string path_;
  std::unique_ptr<sqlite3, Close> file_;
};

}  // namespace sextant
