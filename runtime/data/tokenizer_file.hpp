// Reading the parts of a tokenizer.json: fields by name, and refusals with file, key, value and what was expected.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace sextant {

// A value in short, however deep or large it is.
std::string brief(const nlohmann::json& value);

class TokenizerFile {
 public:
  using json = nlohmann::json;

  explicit TokenizerFile(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }

  // All of these throw ConfigError.
  [[noreturn]] void refuse(std::string key, std::string found, std::string expected,
                           std::string hint = "") const;
  const json& member(const json& object, const std::string& path, const char* key, json::value_t type,
                     const char* type_name) const;
  std::string text(const json& object, const std::string& path, const char* key) const;
  std::optional<std::string> text_if_any(const json& object, const std::string& path, const char* key) const;
  bool flag(const json& object, const std::string& path, const char* key, bool otherwise) const;
  // The id in `value`, below `end`.
  std::int32_t id(const json& value, const std::string& key, std::int64_t end) const;

 private:
  std::string name_;
};

bool absent(const nlohmann::json& object, const char* key);  // or null
std::string member_path(const std::string& path, const char* key);

}  // namespace sextant
