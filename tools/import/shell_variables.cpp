#include "tools/import/shell_variables.hpp"

#include <algorithm>
#include <cctype>

#include <fnmatch.h>

#include "tools/import/integer_expression.hpp"
#include "tools/import/shell_lexer.hpp"

namespace sextant {

namespace {

constexpr int kDeepestExpansion = 40;
constexpr std::size_t kLongestValue = 1 << 20;

bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool goes_on_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

std::size_t name_length(std::string_view text) {
  if (text.empty() || !starts_name(text[0])) return 0;
  std::size_t n = 1;
  while (n < text.size() && goes_on_name(text[n])) ++n;
  return n;
}

std::string trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\n\r"), end = text.find_last_not_of(" \t\n\r");
  return begin == text.npos ? "" : std::string(text.substr(begin, end - begin + 1));
}

// ${X%pattern}, ${X##pattern}: what is left of the value.
std::string without_match(const std::string& value, const std::string& pattern, bool front, bool longest) {
  const std::size_t n = value.size();
  for (std::size_t i = 0; i <= n; ++i) {
    const std::size_t length = longest ? n - i : i;
    const std::string piece = front ? value.substr(0, length) : value.substr(n - length);
    if (fnmatch(pattern.c_str(), piece.c_str(), 0) == 0)
      return front ? value.substr(length) : value.substr(0, n - length);
  }
  return value;
}

std::string replaced(const std::string& value, const std::string& what, const std::string& with, bool all) {
  std::string out;
  std::size_t from = 0;
  for (std::size_t at = 0; !what.empty() && (at = value.find(what, from)) != value.npos;) {
    out.append(value, from, at - from).append(with);
    from = at + what.size();
    if (!all || out.size() > kLongestValue) break;
  }
  return out.append(value, from);
}

}  // namespace

// The fields of a word while it is expanded.
struct ShellVariables::Pieces {
  ShellVariables& of;
  std::vector<std::string> fields = {};
  std::string field = {};
  bool begun = false;  // an empty field in quotes is a field

  void add(std::string_view text) {
    if (text.empty() || field.size() + text.size() > kLongestValue || !of.spend(text.size())) return;
    field += text;
    begun = true;
  }
  void end() {
    if (begun && of.spend(sizeof(std::string))) fields.push_back(std::move(field));
    field.clear();
    begun = false;
  }
  // An unquoted value: blanks end a field.
  void add_split(std::string_view value) {
    int unknown_depth = 0;
    for (const char c : value) {
      if (c == kUnknownBegin) ++unknown_depth;
      if (c == kUnknownEnd) --unknown_depth;
      if (unknown_depth == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r'))
        end();
      else
        add(std::string_view(&c, 1));
    }
  }
};

ShellVariables::ShellVariables(ShellEnvironment environment, std::filesystem::path script)
    : environment_(std::move(environment)), script_(std::move(script)) {
  values_["BASH_SOURCE"] = {script_.string()};
  std::string folder = script_.parent_path().string();
  values_["PWD"] = {folder.empty() ? "." : folder};
}

bool ShellVariables::spend(std::size_t bytes) {
  bytes_left_ -= std::min(bytes, bytes_left_);
  return bytes_left_ > 0;
}

void ShellVariables::set(const std::string& name, std::string value) { values_[name] = {std::move(value)}; }
void ShellVariables::set_array(const std::string& name, std::vector<std::string> values) {
  values_[name] = std::move(values);
}
void ShellVariables::append(const std::string& name, const std::string& value) {
  if (!find(name)) values_[name] = {""};
  auto& values = values_[name];
  if (values.empty()) values.emplace_back();
  if (values[0].size() + value.size() <= kLongestValue) values[0] += value;
}
void ShellVariables::append_array(const std::string& name, const std::vector<std::string>& values) {
  auto& own = values_[name];
  if (own.size() + values.size() <= kLongestValue) own.insert(own.end(), values.begin(), values.end());
}

const std::vector<std::string>* ShellVariables::find(const std::string& name) {
  if (const auto at = values_.find(name); at != values_.end()) return &at->second;
  const auto outside = environment_ ? environment_(name) : std::nullopt;
  if (!outside) return nullptr;
  from_environment_.insert(name);
  return &(values_[name] = {*outside});
}

std::vector<std::string> ShellVariables::fields(std::string_view written) {
  Pieces pieces{*this};
  expand(written, pieces);
  pieces.end();
  return std::move(pieces.fields);
}

std::string ShellVariables::text(std::string_view written) {
  // As in quotes: one field. Inner quotes still are quotes.
  std::string all;
  for (std::size_t at = 0; at < written.size();) {
    const char c = written[at];
    if (c == '$' && !written.substr(at).starts_with("$'")) {
      const std::size_t end = end_of_dollar(written, at);
      Pieces piece{*this};
      expand_dollar(written.substr(at, end - at), true, piece);
      piece.end();
      for (std::size_t i = 0; i < piece.fields.size(); ++i) all += (i > 0 ? " " : "") + piece.fields[i];
      at = end;
      continue;
    }
    const bool quoted = c == '\'' || c == '"' || c == '`' || c == '$';
    const std::size_t end = quoted      ? (c == '$' ? end_of_dollar(written, at) : end_of_quoted(written, at))
                            : c == '\\' ? std::min(at + 2, written.size())
                                        : at + 1;
    Pieces piece{*this};
    expand(written.substr(at, end - at), piece);
    piece.end();
    if (quoted || c == '\\')
      for (std::size_t i = 0; i < piece.fields.size(); ++i) all += (i > 0 ? " " : "") + piece.fields[i];
    else
      all += c;
    at = end;
    if (all.size() > kLongestValue) break;
  }
  return all;
}

std::optional<long long> ShellVariables::arithmetic(std::string_view expression) {
  const auto value_of = [&](const std::string& name) -> std::optional<long long> {
    const auto* values = find(name);
    if (!values || values->empty() || has_unknown(values->front())) return std::nullopt;
    if (values->front().empty()) return 0;
    if (++depth_ > kDeepestExpansion) return std::nullopt;
    const auto value = evaluate_integer(values->front(), [](const std::string&) { return std::nullopt; });
    --depth_;
    return value;
  };
  const std::string all = trimmed(expression);
  const std::size_t n = name_length(all);
  if (n > 0) {
    const std::string name = all.substr(0, n), rest = trimmed(std::string_view(all).substr(n));
    const auto assign = [&](std::optional<long long> value) {
      set(name, value ? std::to_string(*value) : unknown("((" + all + "))"));
      return value;
    };
    if (rest == "++" || rest == "--") return assign(evaluate_integer(name + rest.substr(1) + "1", value_of));
    if (rest.starts_with("=") && !rest.starts_with("==")) return assign(arithmetic(rest.substr(1)));
    if (rest.size() > 2 && rest[1] == '=' &&
        std::string_view("+-*/%").find(rest[0]) != std::string_view::npos)
      return assign(evaluate_integer(name + rest.substr(0, 1) + "(" + rest.substr(2) + ")", value_of));
  }
  return evaluate_integer(all, value_of);
}

void ShellVariables::expand(std::string_view written, Pieces& out) {
  for (std::size_t at = 0; at < written.size();) {
    const char c = written[at];
    if (c == '\\') {
      if (at + 1 < written.size() && written[at + 1] != '\n') out.add(written.substr(at + 1, 1));
      at += 2;
    } else if (c == '\'') {
      const std::size_t end = end_of_quoted(written, at);
      out.begun = true;
      if (end >= at + 2) out.add(written.substr(at + 1, end - at - 2));
      at = end;
    } else if (c == '"') {
      const std::size_t end = end_of_quoted(written, at);
      std::string_view inside = end >= at + 2 ? written.substr(at + 1, end - at - 2) : "";
      const bool array = inside.find("[@]") != inside.npos || inside.find("$@") != inside.npos;
      out.begun = out.begun || !array;  // "${EMPTY[@]}" is no field
      for (std::size_t i = 0; i < inside.size();) {
        if (inside[i] == '\\' && i + 1 < inside.size() &&
            std::string_view("$`\"\\\n").find(inside[i + 1]) != std::string_view::npos) {
          if (inside[i + 1] != '\n') out.add(inside.substr(i + 1, 1));
          i += 2;
        } else if (inside[i] == '$' || inside[i] == '`') {
          const std::size_t stop = inside[i] == '$' ? end_of_dollar(inside, i) : end_of_quoted(inside, i);
          expand_dollar(inside.substr(i, stop - i), true, out);
          i = stop;
        } else {
          out.add(inside.substr(i++, 1));
        }
      }
      at = end;
    } else if (c == '$' || c == '`') {
      const std::size_t end = c == '$' ? end_of_dollar(written, at) : end_of_quoted(written, at);
      if (written.substr(at).starts_with("$'")) {
        out.begun = true;
        if (end >= at + 3) out.add(written.substr(at + 2, end - at - 3));
      } else {
        expand_dollar(written.substr(at, end - at), false, out);
      }
      at = end;
    } else {
      out.add(written.substr(at++, 1));
    }
  }
}

void ShellVariables::expand_dollar(std::string_view written, bool quoted, Pieces& out) {
  if (++depth_ > kDeepestExpansion) {
    --depth_;
    return out.add(unknown(written));
  }
  const auto put = [&](const std::string& text) { quoted ? out.add(text) : out.add_split(text); };
  if (written.starts_with("$((") && written.ends_with("))")) {
    const auto value = arithmetic(written.substr(3, written.size() - 5));
    put(value ? std::to_string(*value) : unknown(written));
  } else if (written.starts_with("$(") || written.starts_with("`")) {
    const std::size_t skip = written[0] == '`' ? 1 : 2;
    const std::string_view command =
        written.size() > skip ? written.substr(skip, written.size() - skip - 1) : "";
    put(command_output(command, written));
  } else if (written.starts_with("${")) {
    expand_braces(written.size() > 3 ? written.substr(2, written.size() - 3) : "", quoted, out);
  } else if (written.size() > 1) {
    expand_braces(written.substr(1), quoted, out);
  } else {
    out.add(written);
  }
  --depth_;
}

// What stands between ${ and }, or behind a plain $, in its parts: #NAME[SUBSCRIPT]REST.
struct ShellVariables::Parameter {
  std::string written;   // as it is marked where it is not known
  bool count = false;    // #NAME: how long, or how many
  bool special = false;  // 1 @ #
  std::string name, subscript;
  std::string_view rest;  // an operator, and what it is given

  explicit Parameter(std::string_view inside) : written("${" + std::string(inside) + "}") {
    count = inside.starts_with('#') && inside.size() > 1;
    if (count) inside.remove_prefix(1);
    std::size_t n = name_length(inside);
    special = n == 0 && !inside.empty();
    if (special) {
      n = 1;
      while (n < inside.size() && std::isdigit(static_cast<unsigned char>(inside[0])) &&
             std::isdigit(static_cast<unsigned char>(inside[n])))
        ++n;
    }
    name = inside.substr(0, n);
    rest = inside.substr(std::min(n, inside.size()));
    if (rest.starts_with('[') && rest.find(']') != rest.npos) {
      subscript = rest.substr(1, rest.find(']') - 1);
      rest.remove_prefix(rest.find(']') + 1);
    }
    if (special && (name == "@" || name == "*")) subscript = "@";
  }
  bool all() const { return subscript == "@" || subscript == "*"; }
};

// Nothing where it is not set.
std::optional<std::vector<std::string>> ShellVariables::values_of(const Parameter& p) {
  if (!p.special) {
    const auto* found = find(p.name);
    return found ? std::optional(*found) : std::nullopt;
  }
  if (p.name == "@" || p.name == "*") return positional_;
  if (p.name == "#") return std::vector{std::to_string(positional_.size())};
  if (!std::isdigit(static_cast<unsigned char>(p.name[0]))) return std::nullopt;
  const std::size_t i = p.name.size() > 4 ? positional_.size() + 1 : std::stoul(p.name);
  if (i == 0) return std::vector{script_.string()};
  return i <= positional_.size() ? std::optional(std::vector{positional_[i - 1]}) : std::nullopt;
}

void ShellVariables::expand_braces(std::string_view inside, bool quoted, Pieces& out) {
  const auto put = [&](const std::string& text) { quoted ? out.add(text) : out.add_split(text); };
  const Parameter p(inside);
  if (const auto at = values_.find(p.name);
      at != values_.end() && !spend(at->second.size() * sizeof(std::string)))
    return;
  auto found = values_of(p);
  const bool known = found.has_value();
  const std::vector<std::string> values = std::move(found).value_or(std::vector<std::string>());
  if (p.count)
    return put(known ? std::to_string(p.all() ? values.size() : values.empty() ? 0 : values[0].size()) : "0");
  if (!p.all() || !p.rest.empty()) return put(one_value(p, values));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0 && quoted && p.subscript == "*")
      out.add(" ");
    else if (i > 0)
      out.end();
    if (quoted) out.begun = true;
    put(values[i]);
  }
}

// The one that the subscript names, or what the operator puts in its place.
std::string ShellVariables::one_value(const Parameter& p, const std::vector<std::string>& values) {
  std::size_t index = 0;
  if (!p.subscript.empty() && !p.all())
    if (const auto i = arithmetic(p.subscript); i && *i >= 0) index = static_cast<std::size_t>(*i);
  const bool known = index < values.size();
  std::string value = known ? values[index] : "";
  const bool empty = without_unknown(value).empty() && !has_unknown(value);
  const bool colon = p.rest.starts_with(':') && p.rest.size() > 1 &&
                     std::string_view("-=+?").find(p.rest[1]) != std::string_view::npos;
  const std::string_view tail = colon ? p.rest.substr(1) : p.rest;
  const bool absent = !known || (colon && empty);
  if (tail.starts_with('-') || tail.starts_with('=')) {
    if (!absent) return value;
    std::string given = text(tail.substr(1));
    if (tail[0] == '=' && !p.special) set(p.name, given);
    return given;
  }
  if (tail.starts_with('+')) return absent ? "" : text(tail.substr(1));
  if (tail.starts_with('?')) return absent ? unknown("$" + p.name) : value;
  if (!known) return unknown(p.rest.empty() ? "$" + p.name : p.written);
  return edited(p, std::move(value));
}

// ${X#pattern}, ${X/what/with}, ${X,,} of a value that is known.
std::string ShellVariables::edited(const Parameter& p, std::string value) {
  const std::string_view rest = p.rest;
  if ((rest.starts_with('#') || rest.starts_with('%')) && !spend(value.size() * value.size())) return "";
  if (rest.starts_with("##") || rest.starts_with("%%"))
    return without_match(value, text(rest.substr(2)), rest[0] == '#', true);
  if (rest.starts_with('#') || rest.starts_with('%'))
    return without_match(value, text(rest.substr(1)), rest[0] == '#', false);
  if (rest.starts_with('/')) {
    const bool every = rest.starts_with("//");
    const std::string_view both = rest.substr(every ? 2 : 1);
    const std::size_t slash = std::min(both.find('/'), both.size());
    return replaced(value, text(both.substr(0, slash)),
                    slash < both.size() ? text(both.substr(slash + 1)) : "", every);
  }
  if (rest.starts_with(",,") || rest.starts_with("^^")) {
    std::ranges::transform(value, value.begin(), [&](unsigned char c) {
      return static_cast<char>(rest[0] == ',' ? std::tolower(c) : std::toupper(c));
    });
    return value;
  }
  return rest.empty() ? value : unknown(p.written);
}

// Of commands that only print what they are given, and folders of the script; all else is not known.
std::string ShellVariables::command_output(std::string_view command, std::string_view written) {
  const std::string text_of = trimmed(command);
  if (text_of == "pwd") return values_["PWD"].empty() ? "." : values_["PWD"].front();
  std::vector<std::string> words;
  for (const ShellToken& token : shell_tokens(text_of)) {
    if (token.kind != ShellToken::word) return unknown(written);
    for (std::string& field : fields(token.text)) words.push_back(std::move(field));
  }
  if (words.empty()) return "";
  const auto joined = [&](std::size_t from) {
    std::string all;
    for (std::size_t i = from; i < words.size(); ++i) all += (i > from ? " " : "") + words[i];
    return all;
  };
  if (words[0] == "echo") return joined(words.size() > 1 && words[1] == "-n" ? 2 : 1);
  if (words[0] == "expr")
    if (const auto value = arithmetic(joined(1))) return std::to_string(*value);
  if ((words[0] == "dirname" || words[0] == "basename") && words.size() == 2) {
    const std::filesystem::path path(words[1]);
    const std::string folder = path.parent_path().string();
    return words[0] == "basename" ? path.filename().string() : folder.empty() ? "." : folder;
  }
  return unknown(written);
}

}  // namespace sextant
