#include "tools/import/python_settings.hpp"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "core/base/decimal.hpp"
#include "tools/import/integer_expression.hpp"

namespace sextant {

namespace {

using Json = nlohmann::json;

constexpr int kDeepestList = 30;

std::string stripped(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\n\r"), end = text.find_last_not_of(" \t\n\r");
  return begin == text.npos ? "" : std::string(text.substr(begin, end - begin + 1));
}

std::size_t end_of_string(std::string_view text, std::size_t at) {
  const std::string_view quote =
      text.substr(at, 3) == "\"\"\"" || text.substr(at, 3) == "'''" ? text.substr(at, 3) : text.substr(at, 1);
  for (std::size_t i = at + quote.size(); i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i;
    else if (text.substr(i).starts_with(quote))
      return i + quote.size();
  }
  return text.size();
}

// The text with comments and documentation strings blanked, line by line as long as before.
std::string without_comments(std::string text) {
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '#') {
      while (i < text.size() && text[i] != '\n') text[i++] = ' ';
    } else if (text[i] == '"' || text[i] == '\'') {
      const std::size_t end = end_of_string(text, i);
      if (text.compare(i, 3, "\"\"\"") == 0 || text.compare(i, 3, "'''") == 0)
        for (; i < end; ++i) text[i] = text[i] == '\n' ? '\n' : ' ';
      i = end;
    } else {
      ++i;
    }
  }
  return text;
}

// One past the bracket that closes what opens at `at`.
std::size_t end_of_brackets(std::string_view text, std::size_t at) {
  int depth = 0;
  for (std::size_t i = at; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = end_of_string(text, i);
      continue;
    }
    if (c == '(' || c == '[' || c == '{') ++depth;
    if ((c == ')' || c == ']' || c == '}') && --depth == 0) return i + 1;
    ++i;
  }
  return text.size();
}

// Pieces between commas that stand in no bracket.
std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size();) {
    if (i == text.size() || text[i] == ',') {
      if (std::string piece = stripped(text.substr(begin, i - begin)); !piece.empty())
        pieces.push_back(std::move(piece));
      begin = ++i;
    } else if (text[i] == '"' || text[i] == '\'') {
      i = end_of_string(text, i);
    } else if (text[i] == '(' || text[i] == '[' || text[i] == '{') {
      i = end_of_brackets(text, i);
    } else {
      ++i;
    }
  }
  return pieces;
}

bool is_identifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

class PythonModule {
 public:
  explicit PythonModule(const std::string& text) : text_(without_comments(text)) { read_constants(); }

  Json value(const std::string& text, int depth = 0) const {
    if (text == "None") return nullptr;
    if (text == "True") return true;
    if (text == "False") return false;
    if (text.size() >= 2 && (text[0] == '"' || text[0] == '\'') && end_of_string(text, 0) == text.size())
      return text.substr(1, text.size() - 2);
    if (const auto at = constants_.find(text); at != constants_.end()) return at->second;
    const auto number = evaluate_integer(text, [&](const std::string& name) -> std::optional<long long> {
      const auto at = constants_.find(name);
      return at != constants_.end() && at->second.is_number_integer()
                 ? std::optional(at->second.get<long long>())
                 : std::nullopt;
    });
    if (number) return *number;
    if (const auto x = parse_decimal(text)) return *x;
    const bool list =
        (text.starts_with('[') || text.starts_with('(')) && end_of_brackets(text, 0) == text.size();
    if (list && depth < kDeepestList) {
      Json items = Json::array();
      for (const std::string& piece : pieces_of(std::string_view(text).substr(1, text.size() - 2)))
        items.push_back(value(piece, depth + 1));
      return items;
    }
    return text;
  }

  // Keyword arguments of the first call of this name in the region; nothing where there is none.
  std::optional<Json> call(std::string_view region, const std::string& name) const {
    const auto arguments = call_text(region, name);
    if (!arguments) return std::nullopt;
    Json out = Json::object();
    int place = 0;
    for (const std::string& piece : pieces_of(*arguments)) {
      std::size_t n = 0;
      while (n < piece.size() && is_identifier(piece[n])) ++n;
      const std::size_t equals = piece.find_first_not_of(" \n", n);
      if (n > 0 && equals != piece.npos && piece[equals] == '=' && piece.compare(equals, 2, "==") != 0)
        out[piece.substr(0, n)] = value(stripped(std::string_view(piece).substr(equals + 1)));
      else
        out[std::to_string(place++)] = value(piece);
    }
    return out;
  }

  static std::optional<std::string_view> call_text(std::string_view region, const std::string& name) {
    for (std::size_t at = 0; (at = region.find(name + "(", at)) != region.npos; ++at) {
      if (at > 0 && is_identifier(region[at - 1])) continue;
      const std::size_t open = at + name.size(), end = end_of_brackets(region, open);
      return region.substr(open + 1, end > open + 1 ? end - open - 2 : 0);
    }
    return std::nullopt;
  }

  // Lines from "def name(" to the next line that begins at the left.
  struct Function {
    std::string name;
    std::string_view body;
  };
  std::vector<Function> functions() const {
    std::vector<Function> all;
    for (std::size_t at = 0; at < text_.size();) {
      const std::size_t line = at,
                        open = text_.compare(at, 4, "def ") == 0 ? text_.find('(', at) : text_.npos;
      do at = std::min(text_.find('\n', at), text_.size() - 1) + 1;
      while (at < text_.size() && std::string_view(" \n\t)").find(text_[at]) != std::string_view::npos);
      if (open < at)
        all.push_back(
            {text_.substr(line + 4, open - line - 4), std::string_view(text_).substr(line, at - line)});
    }
    return all;
  }

  // Empty where there is none of this name.
  std::string_view function(const std::string& name) const {
    for (const Function& one : functions())
      if (one.name == name) return one.body;
    return {};
  }

  Json constants() const {
    Json out = Json::object();
    for (const auto& [name, constant] : constants_) out[name] = constant;
    return out;
  }

 private:
  // "A, B = 1, 2" and "C = [...]" that begin at the left.
  void read_constants() {
    for (std::size_t at = 0; at < text_.size();) {
      const std::size_t line_end = std::min(text_.find('\n', at), text_.size());
      const std::size_t equals = std::string_view(text_).substr(0, line_end).find(" = ", at);
      const std::string names = equals < line_end ? text_.substr(at, equals - at) : "";
      const bool assigns =
          !names.empty() && !std::isspace(static_cast<unsigned char>(names[0])) &&
          std::ranges::all_of(names, [](char c) { return is_identifier(c) || c == ',' || c == ' '; });
      std::size_t next = line_end + 1;
      if (assigns) {
        std::size_t end = equals + 3;
        while (end < text_.size() && text_[end] != '\n')
          end = text_[end] == '(' || text_[end] == '[' || text_[end] == '{' ? end_of_brackets(text_, end)
                : text_[end] == '"' || text_[end] == '\''                   ? end_of_string(text_, end)
                                                                            : end + 1;
        const std::string right = stripped(std::string_view(text_).substr(equals + 3, end - equals - 3));
        const std::vector<std::string> left = pieces_of(names),
                                       values = left.size() > 1 ? pieces_of(right) : std::vector{right};
        for (std::size_t i = 0; i < left.size() && left.size() == values.size(); ++i)
          constants_[left[i]] = value(values[i]);
        next = end + 1;
      }
      at = next;
    }
  }

  std::string text_;
  std::map<std::string, Json> constants_;
};

bool makes_config(std::string_view body) {
  return body.find("TrainingConfig(") != body.npos || body.find("ParallelismConfig(") != body.npos;
}

}  // namespace

std::vector<std::string> config_functions(const std::string& text) {
  const PythonModule module(text);
  std::vector<std::string> names;
  for (const auto& [name, body] : module.functions())
    if (makes_config(body)) names.push_back(name);
  return names;
}

nlohmann::json python_settings(const std::string& text, const std::string& function) {
  const PythonModule module(text);
  const std::string_view body = module.function(function);
  Json settings = {{"constants", module.constants()}, {"model", Json::object()}};
  for (const auto& [name, section] : {std::pair{"TrainingConfig", "training"},
                                      {"ParallelismConfig", "parallelism"},
                                      {"CompileConfig", "compile"}})
    settings[section] = module.call(body, name).value_or(Json::object());
  if (const auto registry = module.call(body, "model_registry"); registry && registry->contains("0"))
    settings["model"]["flavor"] = registry->at("0");
  const auto has = [&](const char* name) { return body.find(name) != body.npos; };
  settings["activation_checkpoint"]["mode"] = has("activation_checkpoint=None")             ? "none"
                                              : has("MemoryBudgetAC")                       ? "memory_budget"
                                              : has("SelectiveAC.Config")                   ? "selective"
                                              : has("SomeLayersAC") || has("FullAC.Config") ? "full"
                                                                                            : "none";
  if (has("SelectiveAC.Config")) settings["activation_checkpoint"]["selective_ac_option"] = "op";
  settings["model"]["converters"] = Json::array();
  const std::string whole = without_comments(text);
  if (has("Float8LinearConverter") ||
      (settings["constants"].contains("DIM") && whole.find("Float8LinearConverter.Config") != whole.npos))
    settings["model"]["converters"].push_back("float8");
  for (const char* other : {"MXFP8LinearConverter", "NVFP4LinearConverter"})
    if (has(other)) settings["model"]["converters"].push_back(other);
  if (const auto rope = module.call(whole, "ComplexRoPE.Config")) settings["rope"] = *rope;
  return settings;
}

}  // namespace sextant
