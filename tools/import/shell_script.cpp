// Longer than others: the statements of bash contain each other.
#include "tools/import/shell_script.hpp"

#include <algorithm>
#include <cctype>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <fnmatch.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "tools/import/shell_lexer.hpp"
#include "tools/import/shell_test.hpp"
#include "tools/import/shell_variables.hpp"

namespace sextant {

namespace {

constexpr int kDeepestScript = 12;  // functions, eval and sourced files within each other
constexpr std::uintmax_t kLongestScript = 1 << 20;
constexpr std::size_t kMostCommands = 10'000;

bool is_assignment(const std::string& word) {
  std::size_t n = 0;
  while (n < word.size() && (std::isalnum(static_cast<unsigned char>(word[n])) || word[n] == '_')) ++n;
  if (n == 0 || std::isdigit(static_cast<unsigned char>(word[0]))) return false;
  return word.compare(n, 1, "=") == 0 || word.compare(n, 2, "+=") == 0;
}

const std::set<std::string> kDeclaring = {"export", "declare", "local", "readonly", "typeset"};
const std::set<std::string> kPassedOver = {
    "echo",  "printf", "mkdir", "cd",    "pushd",      "popd",  "set", "unset", "trap", "module", "ulimit",
    "sleep", "wait",   "true",  "false", ":",          "rm",    "cp",  "mv",    "ls",   "cat",    "tee",
    "chmod", "touch",  "date",  "which", "nvidia-smi", "conda", "git", "pip",   "test", "[",      "[["};

class ScriptReader {
 public:
  ScriptReader(const std::filesystem::path& path, const ShellEnvironment& environment)
      : path_(path), variables_(environment, path) {}

  ShellScript read(const std::string& text) {
    read_slurm(text);
    run_text(text);
    for (const auto& [name, values] : variables_.arrays()) script_.variables[name] = values;
    for (const std::string& name : variables_.from_environment()) script_.from_environment.push_back(name);
    if (variables_.spent())
      script_.notes.emplace_back("it does more than is followed here: what comes behind is not read");
    return std::move(script_);
  }

 private:
  using Tokens = std::vector<ShellToken>;

  // Options of sbatch stand in comments: "#SBATCH --nodes=4".
  void read_slurm(const std::string& text) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      if (!line.starts_with("#SBATCH")) continue;
      for (const ShellToken& token : shell_tokens(std::string_view(line).substr(7)))
        if (token.kind == ShellToken::word) script_.slurm.push_back(variables_.text(token.text));
    }
  }

  void run_text(const std::string& text) {
    if (++depth_ <= kDeepestScript && variables_.spend(text.size())) {
      const Tokens tokens = shell_tokens(text);
      std::size_t at = 0;
      while (at < tokens.size() && !stopped_) {
        run_list(tokens, at, true, {});
        ++at;  // a closing word without its opening
      }
    }
    --depth_;
  }

  static bool is_op(const Tokens& t, std::size_t at, std::string_view text) {
    return at < t.size() && t[at].kind == ShellToken::op && t[at].text == text;
  }
  static bool is_word(const Tokens& t, std::size_t at, std::string_view text) {
    return at < t.size() && t[at].kind == ShellToken::word && t[at].text == text;
  }
  static bool ends_command(const Tokens& t, std::size_t at) {
    return at >= t.size() || (t[at].kind == ShellToken::op && t[at].text != "(");
  }

  // Commands until one of `until` stands where a command begins, which is not passed. Returns what the last one did.
  ShellTruth run_list(const Tokens& t, std::size_t& at, bool active, const std::set<std::string>& until) {
    ShellTruth last = ShellTruth::yes;
    while (at < t.size()) {
      while (at < t.size() && t[at].kind == ShellToken::op &&
             (t[at].text == ";" || t[at].text == "\n" || t[at].text == "&"))
        ++at;
      if (at >= t.size()) break;
      if ((t[at].kind == ShellToken::word || t[at].kind == ShellToken::op) && until.contains(t[at].text))
        break;
      const std::size_t before = at;
      last = run_and_or(t, at, active && !stopped_);
      if (at == before) break;
    }
    return last;
  }

  ShellTruth run_and_or(const Tokens& t, std::size_t& at, bool active) {
    ShellTruth left = run_pipeline(t, at, active);
    while (is_op(t, at, "&&") || is_op(t, at, "||")) {
      const bool both = t[at].text == "&&";
      ++at;
      while (is_op(t, at, "\n")) ++at;
      const bool goes_on = left == (both ? ShellTruth::yes : ShellTruth::no);
      const ShellTruth right = run_pipeline(t, at, active && goes_on);
      if (goes_on) left = right;
    }
    return left;
  }

  ShellTruth run_pipeline(const Tokens& t, std::size_t& at, bool active) {
    bool inverted = false;
    while (is_word(t, at, "!")) {
      inverted = !inverted;
      ++at;
    }
    ShellTruth result = run_command(t, at, active);
    while (is_op(t, at, "|")) {
      ++at;
      while (is_op(t, at, "\n")) ++at;
      run_command(t, at, active);
      result = ShellTruth::unknown;
    }
    return inverted ? negated(result) : result;
  }

  ShellTruth run_command(const Tokens& t, std::size_t& at, bool active) {
    if (at >= t.size()) return ShellTruth::yes;
    if (++nesting_ > 200) {
      at = t.size();
      --nesting_;
      return ShellTruth::unknown;
    }
    if (active && !variables_.spend(sizeof(ShellCommand))) {
      stopped_ = true;
      active = false;
    }
    const ShellTruth result = run_one(t, at, active);
    --nesting_;
    return result;
  }

  ShellTruth run_one(const Tokens& t, std::size_t& at, bool active) {
    const ShellToken& first = t[at];
    if (first.kind == ShellToken::arithmetic) {
      ++at;
      const auto value = active ? variables_.arithmetic(first.text) : std::nullopt;
      return value ? (*value != 0 ? ShellTruth::yes : ShellTruth::no) : ShellTruth::unknown;
    }
    if (first.kind == ShellToken::op && first.text == "(") return run_group(t, at, active, ")");
    if (first.kind == ShellToken::word) {
      if (first.text == "{") return run_group(t, at, active, "}");
      if (first.text == "if") return run_if(t, at, active);
      if (first.text == "for" || first.text == "select") return run_for(t, at, active);
      if (first.text == "while" || first.text == "until") return run_while(t, at);
      if (first.text == "case") return run_case(t, at, active);
      if (first.text == "function" || (is_op(t, at + 1, "(") && is_op(t, at + 2, ")")))
        return define_function(t, at, active);
    }
    return run_simple(t, at, active);
  }

  ShellTruth run_group(const Tokens& t, std::size_t& at, bool active, const std::string& closing) {
    ++at;
    const ShellTruth result = run_list(t, at, active, {closing});
    if (at < t.size()) ++at;
    skip_redirects(t, at);
    return result;
  }

  void skip_redirects(const Tokens& t, std::size_t& at) {
    while (at < t.size() && t[at].kind == ShellToken::redirect) at += 2;
  }

  ShellTruth run_if(const Tokens& t, std::size_t& at, bool active) {
    const int line = t[at].line;
    bool done = false;
    while (at < t.size() && (t[at].text == "if" || t[at].text == "elif")) {
      ++at;
      const std::size_t condition_begin = at;
      const ShellTruth condition = run_list(t, at, active && !done, {"then"});
      const std::size_t condition_end = at;
      if (at < t.size()) ++at;
      const std::size_t body = at;
      const bool taken = active && !done && condition == ShellTruth::yes;
      run_list(t, at, taken, {"elif", "else", "fi"});
      if (active && !done && condition == ShellTruth::unknown && assigns(t, body, at))
        script_.notes.push_back(
            fmt::format("line {}: the condition {} is not known without running the script; taken as false",
                        line, written(t, condition_begin, condition_end)));
      done = done || taken;
    }
    if (is_word(t, at, "else")) {
      ++at;
      run_list(t, at, active && !done, {"fi"});
    }
    if (at < t.size()) ++at;
    skip_redirects(t, at);
    return ShellTruth::yes;
  }

  static bool assigns(const Tokens& t, std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to && i < t.size(); ++i)
      if (t[i].kind == ShellToken::array || (t[i].kind == ShellToken::word && is_assignment(t[i].text)))
        return true;
    return false;
  }

  static std::string written(const Tokens& t, std::size_t from, std::size_t to) {
    std::string text;
    for (std::size_t i = from; i < to && i < t.size(); ++i)
      if (t[i].text != "\n" && t[i].text != ";") text += (text.empty() ? "" : " ") + t[i].text;
    return text;
  }

  // The first round alone.
  ShellTruth run_for(const Tokens& t, std::size_t& at, bool active) {
    const int line = t[at++].line;
    std::string name;
    std::vector<std::string> values;
    if (at < t.size() && t[at].kind == ShellToken::arithmetic) {  // for ((i = 0; ...))
      if (active) variables_.arithmetic(t[at].text.substr(0, t[at].text.find(';')));
      ++at;
    } else {
      if (at < t.size()) name = t[at++].text;
      while (is_op(t, at, "\n")) ++at;
      if (is_word(t, at, "in")) ++at;
      while (!ends_command(t, at) && !is_word(t, at, "do"))
        if (const ShellToken& token = t[at++]; token.kind == ShellToken::word && active)
          for (std::string& field : variables_.fields(token.text)) values.push_back(std::move(field));
    }
    while (at < t.size() && !is_word(t, at, "do")) ++at;
    if (at < t.size()) ++at;
    const std::size_t commands = script_.commands.size();
    if (active && !values.empty()) variables_.set(name, values.front());
    run_list(t, at, active && (name.empty() || !values.empty()), {"done"});
    if (at < t.size()) ++at;
    skip_redirects(t, at);
    if (values.size() > 1 && script_.commands.size() > commands)
      script_.notes.push_back(fmt::format("line {}: of the loop over {} the first round alone: {}={}", line,
                                          name, name, shown_unknown(values.front())));
    return ShellTruth::yes;
  }

  // Loops that read options or wait: passed over.
  ShellTruth run_while(const Tokens& t, std::size_t& at) {
    ++at;
    run_list(t, at, false, {"do"});
    if (at < t.size()) ++at;
    run_list(t, at, false, {"done"});
    if (at < t.size()) ++at;
    skip_redirects(t, at);
    return ShellTruth::yes;
  }

  ShellTruth run_case(const Tokens& t, std::size_t& at, bool active) {
    ++at;
    const std::string value = at < t.size() && active ? without_unknown(variables_.text(t[at].text)) : "";
    ++at;
    while (at < t.size() && !is_word(t, at, "in")) ++at;
    ++at;
    bool done = false;
    while (at < t.size()) {
      while (is_op(t, at, "\n") || is_op(t, at, ";;") || is_op(t, at, "(")) ++at;
      if (at >= t.size() || is_word(t, at, "esac")) break;
      bool matches = false;
      for (; at < t.size() && !is_op(t, at, ")"); ++at)
        if (t[at].kind == ShellToken::word && active && !done)
          matches = matches || fits(variables_.text(t[at].text), value);
      if (at < t.size()) ++at;
      run_list(t, at, active && matches && !done, {";;", "esac"});
      done = done || matches;
    }
    if (at < t.size()) ++at;
    return ShellTruth::yes;
  }

  bool fits(const std::string& pattern, const std::string& value) {
    return variables_.spend(pattern.size() * value.size()) && fnmatch(pattern.c_str(), value.c_str(), 0) == 0;
  }

  ShellTruth define_function(const Tokens& t, std::size_t& at, bool active) {
    if (t[at].text == "function") ++at;
    const std::string name = at < t.size() ? t[at++].text : "";
    while (is_op(t, at, "(") || is_op(t, at, ")") || is_op(t, at, "\n")) ++at;
    const std::size_t begin = at;
    run_command(t, at, false);
    at = std::min(at, t.size());
    if (active && begin <= at)
      functions_[name] = std::make_shared<const Tokens>(t.begin() + static_cast<std::ptrdiff_t>(begin),
                                                        t.begin() + static_cast<std::ptrdiff_t>(at));
    return ShellTruth::yes;
  }

  void assign(const std::string& word) {
    const std::size_t equals = word.find('=');
    const bool more = equals > 0 && word[equals - 1] == '+';
    const std::string name = word.substr(0, more ? equals - 1 : equals);
    std::string value = variables_.text(std::string_view(word).substr(equals + 1));
    if (more)
      variables_.append(name, value);
    else
      variables_.set(name, std::move(value));
  }

  void assign_array(const ShellToken& token) {
    std::vector<std::string> values;
    for (const std::string& element : token.elements)
      for (std::string& field : variables_.fields(element)) values.push_back(std::move(field));
    const bool more = token.text.ends_with("+=");
    const std::string name = token.text.substr(0, token.text.size() - (more ? 2 : 1));
    if (more)
      variables_.append_array(name, values);
    else
      variables_.set_array(name, std::move(values));
  }

  // Between [[ and ]] the operators && || ( ) < > are its own.
  ShellTruth run_brackets(const Tokens& t, std::size_t& at, bool active) {
    std::vector<std::string> words;
    ++at;
    int line = at < t.size() ? t[at].line : 0;
    for (; at < t.size() && !is_word(t, at, "]]"); ++at) {
      if (is_op(t, at, "\n") && t[at].line > line + 20) break;
      if (t[at].kind != ShellToken::word)
        words.push_back(t[at].text);
      else
        words.push_back(active ? variables_.text(t[at].text) : "");
    }
    if (at < t.size()) ++at;
    return active ? tested(words) : ShellTruth::unknown;
  }

  ShellTruth tested(const std::vector<std::string>& words) {
    std::size_t characters = 0;
    for (const std::string& word : words) characters += word.size();
    return variables_.spend(characters * characters) ? shell_test(words) : ShellTruth::unknown;
  }

  ShellTruth run_simple(const Tokens& t, std::size_t& at, bool active) {
    if (is_word(t, at, "[[")) return run_brackets(t, at, active);
    std::vector<std::string> words;
    std::string document, target;
    const int line = t[at].line;
    bool declaring = false;
    while (!ends_command(t, at)) {
      const ShellToken& token = t[at];
      if (token.kind == ShellToken::redirect) {
        if (token.text.starts_with("<<") && token.text != "<<<") {
          const bool quoted = at + 1 < t.size() && t[at + 1].text.find_first_of("'\"\\") != std::string::npos;
          document = quoted ? token.document : active ? expanded_document(token.document) : "";
        } else if (token.text.starts_with('>') && at + 1 < t.size() && active) {
          target = variables_.text(t[at + 1].text);
        }
        at += 2;
        continue;
      }
      ++at;
      if (!active) continue;
      if (token.kind == ShellToken::array)
        assign_array(token);
      else if (token.kind == ShellToken::word && is_assignment(token.text) && (words.empty() || declaring))
        assign(token.text);
      else if (token.kind == ShellToken::word)
        for (std::string& field : variables_.fields(token.text)) words.push_back(std::move(field));
      declaring = declaring || (words.size() == 1 && kDeclaring.contains(words[0]));
    }
    at = std::min(at, t.size());
    if (!document.empty() && !target.empty()) script_.documents[target] = document;
    return active && !words.empty() ? started(std::move(words), line) : ShellTruth::yes;
  }

  std::string expanded_document(const std::string& document) {
    std::string quoted = "\"";
    for (const char c : document) quoted += c == '"' ? "\\\"" : std::string(1, c);
    return variables_.text(quoted + "\"");
  }

  // A command with its words.
  ShellTruth started(std::vector<std::string> words, int line) {
    const std::string name = words[0];
    if (name == "exit" || name == "return" || name == "exec") {
      if (name != "exec") stopped_ = stopped_ || name == "exit";
      if (name != "exec" || words.size() < 2) return ShellTruth::yes;
      words.erase(words.begin());
    }
    if (name == "eval") {
      std::string text;
      for (std::size_t i = 1; i < words.size(); ++i) text += (i > 1 ? " " : "") + words[i];
      run_text(text);
      return ShellTruth::yes;
    }
    if (name == "source" || name == ".") return source(words, line);
    if (name == "[" || name == "test") {
      std::vector<std::string> inside(words.begin() + 1, words.end());
      if (name == "[" && !inside.empty() && inside.back() == "]") inside.pop_back();
      return tested(inside);
    }
    if (name == "set" && words.size() > 1 && words[1] == "--")
      variables_.set_positional({words.begin() + 2, words.end()});
    if (name == "shift" && !variables_.positional().empty())
      variables_.set_positional({variables_.positional().begin() + 1, variables_.positional().end()});
    if (name == "sbatch") {  // its options are those of #SBATCH lines
      script_.slurm.insert(script_.slurm.end(), words.begin() + 1, words.end());
      return ShellTruth::yes;
    }
    if (name == "false") return ShellTruth::no;
    if (const auto function = functions_.find(name); function != functions_.end()) {
      const auto body = function->second;  // held here: it may define itself anew
      return call(*body, words);
    }
    if (kDeclaring.contains(name) || kPassedOver.contains(name))
      return name == "which" ? ShellTruth::unknown : ShellTruth::yes;
    for (std::size_t i = 1; i + 1 < words.size(); ++i)  // bash -c "torchrun ..."
      if (words[i] == "-c" && words[i + 1].find(' ') != std::string::npos &&
          !words[i - 1].ends_with("python") && !words[i - 1].ends_with("python3")) {
        run_text(words[i + 1]);
        words.resize(i);
        break;
      }
    if (script_.commands.size() < kMostCommands) script_.commands.push_back({std::move(words), line});
    return ShellTruth::yes;
  }

  ShellTruth call(const Tokens& body, const std::vector<std::string>& words) {
    if (++depth_ <= kDeepestScript && variables_.spend(body.size() * sizeof(ShellToken))) {
      const std::vector<std::string> outer = variables_.positional();
      variables_.set_positional({words.begin() + 1, words.end()});
      std::size_t at = 0;
      run_command(body, at, true);
      variables_.set_positional(outer);
    }
    --depth_;
    return ShellTruth::yes;
  }

  ShellTruth source(const std::vector<std::string>& words, int line) {
    if (words.size() < 2) return ShellTruth::yes;
    const std::string name = without_unknown(words[1]);
    const std::filesystem::path file = path_.parent_path() / name;
    std::string text;
    try {
      if (has_unknown(words[1])) throw ConfigError(Problem{});
      text = read_text_file(file, kLongestScript);
    } catch (const ConfigError&) {
      script_.notes.push_back(fmt::format("line {}: {} could not be read", line, shown_unknown(words[1])));
      return ShellTruth::unknown;
    }
    run_text(text);
    return ShellTruth::yes;
  }

  std::filesystem::path path_;
  ShellVariables variables_;
  std::map<std::string, std::shared_ptr<const Tokens>> functions_;
  ShellScript script_;
  int depth_ = 0, nesting_ = 0;
  bool stopped_ = false;
};

}  // namespace

ShellScript read_shell_script(const std::string& text, const std::filesystem::path& path,
                              const ShellEnvironment& environment) {
  return ScriptReader(path, environment).read(text);
}

}  // namespace sextant
