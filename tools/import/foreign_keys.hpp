// Keys of another framework's configuration: values that are checked when asked for, and the names of those that nobody asked for.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace sextant {

class ForeignKeys {
 public:
  // `no_effect`: patterns of paths that a step does not depend on ("optimizer.lr", "checkpoint.*").
  ForeignKeys(nlohmann::json settings, std::string file, std::vector<std::string> no_effect);

  // By path: "parallelism.tensor_parallel_degree". Nothing where it is absent, null or "auto"; a value of another kind throws
  // ConfigError with file, key, value and what was expected.
  std::optional<int> count(const std::string& path, int least = 1);
  std::optional<double> real(const std::string& path);
  std::optional<std::string> text(const std::string& path);
  std::optional<bool> flag(const std::string& path);
  const nlohmann::json* value(const std::string& path);  // as it stands
  bool is(const std::string& path) { return flag(path).value_or(false); }

  [[noreturn]] void wrong(const std::string& path, const std::string& expected,
                          const std::string& hint = "") const;
  [[noreturn]] void wrong(const std::string& path, const std::string& value, const std::string& expected,
                          const std::string& hint) const;

  // Of everything else, as "path value"; values that are null or false say nothing.
  std::vector<std::string> unread() const;
  const std::string& file() const { return file_; }
  const nlohmann::json& settings() const { return settings_; }

 private:
  const nlohmann::json* find(const std::string& path) const;

  nlohmann::json settings_;
  std::string file_;
  std::vector<std::string> no_effect_;
  std::set<std::string> asked_;
};

}  // namespace sextant
