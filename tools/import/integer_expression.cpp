#include "tools/import/integer_expression.hpp"

#include <array>
#include <cctype>

namespace sextant {

namespace {

constexpr long long kMostValue = 1LL << 62;
constexpr int kDeepest = 64;  // parentheses within parentheses

struct BinaryOperator {
  std::string_view text;
  int binds;  // higher binds tighter
};
constexpr std::array kBinary = {BinaryOperator{"||", 1}, BinaryOperator{"&&", 2}, BinaryOperator{"==", 3},
                                BinaryOperator{"!=", 3}, BinaryOperator{"<=", 4}, BinaryOperator{">=", 4},
                                BinaryOperator{"<", 4},  BinaryOperator{">", 4},  BinaryOperator{"+", 5},
                                BinaryOperator{"-", 5},  BinaryOperator{"**", 8}, BinaryOperator{"//", 6},
                                BinaryOperator{"*", 6},  BinaryOperator{"/", 6},  BinaryOperator{"%", 6}};

std::optional<long long> in_bounds(bool overflow, long long value) {
  return overflow || value > kMostValue || value < -kMostValue ? std::nullopt : std::optional(value);
}

std::optional<long long> product(long long a, long long b) {
  long long value = 0;
  const bool overflow = __builtin_mul_overflow(a, b, &value);
  return in_bounds(overflow, value);
}

std::optional<long long> sum(long long a, long long b) {
  long long value = 0;
  const bool overflow = __builtin_add_overflow(a, b, &value);
  return in_bounds(overflow, value);
}

std::optional<long long> power(long long base, long long exponent) {
  if (exponent < 0 || exponent > 62) return std::nullopt;
  std::optional<long long> result = 1;
  for (long long i = 0; i < exponent && result; ++i) result = product(*result, base);
  return result;
}

std::optional<long long> apply(std::string_view op, long long a, long long b) {
  if (op == "||") return a != 0 || b != 0;
  if (op == "&&") return a != 0 && b != 0;
  if (op == "==") return a == b;
  if (op == "!=") return a != b;
  if (op == "<=") return a <= b;
  if (op == ">=") return a >= b;
  if (op == "<") return a < b;
  if (op == ">") return a > b;
  if (op == "+") return sum(a, b);
  if (op == "-") return sum(a, -b);
  if (op == "*") return product(a, b);
  if (op == "**") return power(a, b);
  if (b == 0) return std::nullopt;
  return op == "%" ? a % b : a / b;
}

class ExpressionParser {
 public:
  ExpressionParser(std::string_view text,
                   const std::function<std::optional<long long>(const std::string&)>& value_of)
      : text_(text), value_of_(value_of) {}

  std::optional<long long> parse() {
    const auto value = ternary();
    skip_blanks();
    return at_ == text_.size() ? value : std::nullopt;
  }

 private:
  std::optional<long long> ternary() {
    const auto condition = binary(1);
    if (!condition || !take("?")) return condition;
    if (++depth_ > kDeepest) return std::nullopt;
    const auto yes = ternary();
    if (!yes || !take(":")) return std::nullopt;
    const auto no = ternary();
    --depth_;
    return *condition != 0 ? yes : no;
  }

  std::optional<long long> binary(int least) {
    auto left = unary();
    while (left) {
      const BinaryOperator* op = next_operator();
      if (!op || op->binds < least) return left;
      at_ += op->text.size();
      const auto right = binary(op->binds + 1);
      if (!right) return std::nullopt;
      left = apply(op->text, *left, *right);
    }
    return left;
  }

  std::optional<long long> unary() {
    if (++depth_ > kDeepest) return std::nullopt;
    auto value = operand();
    --depth_;
    return value;
  }

  std::optional<long long> operand() {
    if (take("-")) {
      const auto value = unary();
      return value ? std::optional(-*value) : value;
    }
    if (take("+")) return unary();
    if (take("!")) {
      const auto value = unary();
      return value ? std::optional<long long>(*value == 0) : value;
    }
    if (take("(")) {
      const auto value = ternary();
      return take(")") ? value : std::nullopt;
    }
    skip_blanks();
    const bool dollar = at_ < text_.size() && text_[at_] == '$';
    if (dollar) ++at_;
    const bool brace = dollar && at_ < text_.size() && text_[at_] == '{';
    if (brace) ++at_;
    const std::string word = take_word();
    if (brace && !take("}")) return std::nullopt;
    if (word.empty()) return std::nullopt;
    return std::isdigit(static_cast<unsigned char>(word[0])) ? number(word) : value_of_(word);
  }

  static std::optional<long long> number(const std::string& word) {
    std::optional<long long> value = 0;
    for (const char c : word) {
      if (c == '_') continue;  // 1_000 of Python
      if (c < '0' || c > '9') return std::nullopt;
      value = product(*value, 10);
      if (value) value = sum(*value, c - '0');
      if (!value) return value;
    }
    return value;
  }

  const BinaryOperator* next_operator() {
    skip_blanks();
    const BinaryOperator* longest = nullptr;
    for (const BinaryOperator& op : kBinary)
      if (text_.substr(at_).starts_with(op.text) && (!longest || op.text.size() > longest->text.size()))
        longest = &op;
    return longest;
  }

  bool take(std::string_view what) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }

  std::string take_word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  std::string_view text_;
  const std::function<std::optional<long long>(const std::string&)>& value_of_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<long long> evaluate_integer(
    std::string_view text, const std::function<std::optional<long long>(const std::string&)>& value_of) {
  return ExpressionParser(text, value_of).parse();
}

}  // namespace sextant
