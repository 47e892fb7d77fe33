// An answer of --json as a report reads it: fields by name, and errors that name file, key, value and what was expected. Keys
// that a report does not need are let pass, so that answers of later versions can be read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace sextant {

class AnswerView {
 public:
  // Both must outlive the view.
  AnswerView(const nlohmann::json& value, const std::string& file) : value_(&value), file_(&file) {}

  bool has(const std::string& key) const;  // there, and not null
  AnswerView at(const std::string& key) const;
  double number(const std::string& key) const;
  std::int64_t count(const std::string& key) const;
  std::string text(const std::string& key) const;
  bool flag(const std::string& key) const;
  double number_or(const std::string& key, double otherwise) const;
  std::string text_or(const std::string& key, const std::string& otherwise) const;
  std::vector<AnswerView> items(const std::string& key) const;  // none where the key is absent
  std::vector<std::string> texts(const std::string& key) const;
  // Members of an object of numbers, by name; none where the key is absent.
  std::vector<std::pair<std::string, double>> numbers(const std::string& key) const;

  const std::string& file() const { return *file_; }
  const nlohmann::json& json() const { return *value_; }

 private:
  AnswerView(const nlohmann::json& value, const std::string& file, std::string path)
      : value_(&value), file_(&file), path_(std::move(path)) {}
  const nlohmann::json* find(const std::string& key) const;
  const nlohmann::json& need(const std::string& key, const char* expected) const;
  [[noreturn]] void refuse(const std::string& key, const nlohmann::json* found, const char* expected) const;
  std::string path_of(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  const nlohmann::json* value_;
  const std::string* file_;
  std::string path_;
};

}  // namespace sextant
