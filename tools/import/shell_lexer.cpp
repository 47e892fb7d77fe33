#include "tools/import/shell_lexer.hpp"

#include <algorithm>
#include <cctype>

namespace sextant {

namespace {

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

constexpr int kDeepestQuote = 100;  // quotes within brackets within quotes

std::size_t end_of_balanced(std::string_view text, std::size_t at, char open, char close, int level) {
  if (level > kDeepestQuote) return text.size();
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '\\') {
      at += 2;
      continue;
    }
    if (c == '\'' || c == '"' || c == '`') {
      at = end_of_quoted(text, at, level + 1);
      continue;
    }
    if (c == open) ++depth;
    if (c == close && --depth == 0) return at + 1;
    ++at;
  }
  return text.size();
}

// "2>" and "NAME=(" begin as words.
bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}
bool is_assignment_start(std::string_view text) {
  if (!text.ends_with('=')) return false;
  text.remove_suffix(text.ends_with("+=") ? 2 : 1);
  return !text.empty() && !std::isdigit(static_cast<unsigned char>(text[0])) &&
         std::ranges::all_of(text, is_name);
}

class ShellLexer {
 public:
  explicit ShellLexer(std::string_view text) : text_(text) {}

  std::vector<ShellToken> lex() {
    while (skip_blanks(), at_ < text_.size()) {
      if (text_[at_] == '\n') {
        add(ShellToken::op, "\n");
        next_line();
        read_documents();
      } else if (!read_operator()) {
        read_word_token();
      }
    }
    return std::move(tokens_);
  }

 private:
  void add(ShellToken::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_, {}, ""});
  }

  void next_line() {
    ++at_;
    ++line_;
  }

  // Blanks, comments and continuations.
  void skip_blanks() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\\' && at_ + 1 < text_.size() && (text_[at_ + 1] == '\n' || text_[at_ + 1] == '\r')) {
        if (text_[++at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
        ++line_;
      } else if (c == '#') {
        while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      } else if (c != ' ' && c != '\t' && c != '\r') {
        return;
      }
    }
  }

  bool read_operator() {
    const std::string_view rest = text_.substr(at_);
    const bool starts = tokens_.empty() || tokens_.back().kind == ShellToken::op ||
                        (tokens_.back().kind == ShellToken::word &&
                         (tokens_.back().text == "if" || tokens_.back().text == "elif" ||
                          tokens_.back().text == "while" || tokens_.back().text == "!"));
    if (starts && rest.starts_with("((")) {
      const std::size_t end = end_of_balanced(text_, at_, '(', ')', 0);
      const std::size_t inner = end >= at_ + 4 ? end - at_ - 4 : 0;
      add(ShellToken::arithmetic, std::string(text_.substr(at_ + 2, inner)));
      advance(end);
      return true;
    }
    for (const std::string_view redirect : {"<<<", "<<-", "&>", ">>", "<<", ">&", ">", "<"})
      if (rest.starts_with(redirect)) {
        if (!tokens_.empty() && tokens_.back().kind == ShellToken::word && all_digits(tokens_.back().text) &&
            at_ > 0 && is_name(text_[at_ - 1]))
          tokens_.pop_back();  // the number of a file
        add(ShellToken::redirect, std::string(redirect));
        at_ += redirect.size();
        if (redirect == "<<" || redirect == "<<-") pending_.push_back(tokens_.size() - 1);
        return true;
      }
    for (const std::string_view op : {"&&", "||", ";;", "&", "|", ";", "(", ")"})
      if (rest.starts_with(op)) {
        add(ShellToken::op, std::string(op));
        at_ += op.size();
        return true;
      }
    return false;
  }

  void advance(std::size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }

  std::string read_word() {
    std::string word;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\' && at_ + 1 < text_.size()) {
        if (text_[at_ + 1] == '\n')
          ++line_;
        else
          word += std::string(text_.substr(at_, 2));
        at_ += 2;
      } else if (c == '\'' || c == '"' || c == '`' || c == '$') {
        const std::size_t end = c == '$' ? end_of_dollar(text_, at_) : end_of_quoted(text_, at_);
        word += std::string(text_.substr(at_, end - at_));
        advance(end);
      } else if (std::isspace(static_cast<unsigned char>(c)) ||
                 std::string_view(";&|()<>").find(c) != std::string_view::npos) {
        break;
      } else {
        word += c;
        ++at_;
      }
    }
    return word;
  }

  void read_word_token() {
    const std::size_t before = at_;
    std::string word = read_word();
    if (at_ < text_.size() && text_[at_] == '(' && is_assignment_start(word)) {
      add(ShellToken::array, std::move(word));
      ++at_;
      read_elements(tokens_.back().elements);
      return;
    }
    if (at_ == before) {
      ++at_;  // nothing that a word may begin with: passed over
      return;
    }
    add(ShellToken::word, std::move(word));
  }

  void read_elements(std::vector<std::string>& elements) {
    while (skip_blanks(), at_ < text_.size()) {
      if (text_[at_] == '\n') {
        next_line();
      } else if (text_[at_] == ')') {
        ++at_;
        return;
      } else {
        const std::size_t before = at_;
        std::string word = read_word();
        if (at_ == before)
          ++at_;
        else
          elements.push_back(std::move(word));
      }
    }
  }

  // The lines of the here-documents that this line opened.
  void read_documents() {
    for (const std::size_t opened : pending_) {
      if (opened + 1 >= tokens_.size()) continue;
      const std::string& written = tokens_[opened + 1].text;
      std::string delimiter;
      for (const char c : written)
        if (c != '\'' && c != '"' && c != '\\') delimiter += c;
      std::string document;
      while (at_ < text_.size()) {
        const std::size_t end = std::min(text_.find('\n', at_), text_.size());
        std::string_view line = text_.substr(at_, end - at_);
        at_ = std::min(end + 1, text_.size());
        ++line_;
        if (tokens_[opened].text == "<<-")
          while (line.starts_with('\t')) line.remove_prefix(1);
        if (line == delimiter) break;
        document += std::string(line) + "\n";
      }
      tokens_[opened].document = std::move(document);
    }
    pending_.clear();
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<ShellToken> tokens_;
  std::vector<std::size_t> pending_;  // << whose lines are yet to come
};

}  // namespace

std::vector<ShellToken> shell_tokens(std::string_view text) { return ShellLexer(text).lex(); }

std::size_t end_of_quoted(std::string_view text, std::size_t at, int level) {
  if (level > kDeepestQuote) return text.size();
  const char quote = text[at++];
  while (at < text.size()) {
    if (text[at] == quote) return at + 1;
    if (quote != '\'' && text[at] == '\\')
      at += 2;
    else if (quote == '"' && text[at] == '$')
      at = end_of_dollar(text, at, level + 1);
    else
      ++at;
  }
  return text.size();
}

std::size_t end_of_dollar(std::string_view text, std::size_t at, int level) {
  if (at + 1 >= text.size()) return text.size();
  const char next = text[at + 1];
  if (next == '{') return end_of_balanced(text, at + 1, '{', '}', level);
  if (next == '(') return end_of_balanced(text, at + 1, '(', ')', level);
  if (next == '\'') return end_of_quoted(text, at + 1, level);
  if (!is_name(next))
    return std::string_view("@*#?$!-").find(next) != std::string_view::npos ? at + 2 : at + 1;
  std::size_t end = at + 2;
  if (!std::isdigit(static_cast<unsigned char>(next)))
    while (end < text.size() && is_name(text[end])) ++end;
  return end;
}

}  // namespace sextant
