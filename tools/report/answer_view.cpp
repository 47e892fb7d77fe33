#include "tools/report/answer_view.hpp"

#include <cmath>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

const nlohmann::json* AnswerView::find(const std::string& key) const {
  if (!value_->is_object()) return nullptr;
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

void AnswerView::refuse(const std::string& key, const nlohmann::json* found, const char* expected) const {
  constexpr std::size_t kShown = 40;
  std::string value =
      found ? found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : "missing";
  if (value.size() > kShown) value = value.substr(0, kShown) + "...";
  throw ConfigError(Problem{*file_, path_of(key), value, expected, "print the answer anew with --json"});
}

const nlohmann::json& AnswerView::need(const std::string& key, const char* expected) const {
  const nlohmann::json* found = find(key);
  if (!found) refuse(key, nullptr, expected);
  return *found;
}

bool AnswerView::has(const std::string& key) const { return find(key) != nullptr; }

AnswerView AnswerView::at(const std::string& key) const {
  const nlohmann::json& found = need(key, "an object");
  if (!found.is_object()) refuse(key, &found, "an object");
  return {found, *file_, path_of(key)};
}

double AnswerView::number(const std::string& key) const {
  const nlohmann::json& found = need(key, "a number");
  if (!found.is_number()) refuse(key, &found, "a number");
  return found.get<double>();
}

std::int64_t AnswerView::count(const std::string& key) const {
  const double value = number(key);
  constexpr double kMost = 9e18;
  if (!(std::abs(value) < kMost)) refuse(key, find(key), "a count");
  return static_cast<std::int64_t>(value);
}

std::string AnswerView::text(const std::string& key) const {
  const nlohmann::json& found = need(key, "text");
  if (!found.is_string()) refuse(key, &found, "text");
  return found.get<std::string>();
}

bool AnswerView::flag(const std::string& key) const {
  const nlohmann::json& found = need(key, "true or false");
  if (!found.is_boolean()) refuse(key, &found, "true or false");
  return found.get<bool>();
}

double AnswerView::number_or(const std::string& key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}

std::string AnswerView::text_or(const std::string& key, const std::string& otherwise) const {
  return has(key) ? text(key) : otherwise;
}

std::vector<AnswerView> AnswerView::items(const std::string& key) const {
  const nlohmann::json* found = find(key);
  if (!found) return {};
  if (!found->is_array()) refuse(key, found, "a list");
  std::vector<AnswerView> out;
  for (std::size_t i = 0; i < found->size(); ++i) {
    if (!(*found)[i].is_object()) refuse(fmt::format("{}[{}]", key, i), &(*found)[i], "an object");
    out.push_back({(*found)[i], *file_, fmt::format("{}[{}]", path_of(key), i)});
  }
  return out;
}

std::vector<std::string> AnswerView::texts(const std::string& key) const {
  const nlohmann::json* found = find(key);
  if (!found) return {};
  if (!found->is_array()) refuse(key, found, "a list of texts");
  std::vector<std::string> out;
  for (const nlohmann::json& item : *found) {
    if (!item.is_string()) refuse(key, &item, "a list of texts");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<std::pair<std::string, double>> AnswerView::numbers(const std::string& key) const {
  const nlohmann::json* found = find(key);
  if (!found) return {};
  if (!found->is_object()) refuse(key, found, "an object of numbers");
  std::vector<std::pair<std::string, double>> out;
  for (const auto& [name, value] : found->items()) {
    if (!value.is_number()) refuse(key + "." + name, &value, "a number");
    out.emplace_back(name, value.get<double>());
  }
  return out;
}

}  // namespace sextant
