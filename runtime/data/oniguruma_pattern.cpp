#include "runtime/data/oniguruma_pattern.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace sextant {
namespace {

// White_Space of Unicode, and all but it, as the insides of a bracket.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNoSpaces =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
// Oniguruma has all numbers of Latin-1 for words, of others the decimal ones; within a set those alone.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr std::string_view kWordClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHexDigits = "0-9a-fA-F";

constexpr std::size_t kLongest = 10000;  // bytes of a pattern; published ones have some hundreds
constexpr int kDeepestGroup = 50;        // groups, and sets within sets

// Long names of general categories, and what is named like them.
constexpr std::string_view kPropertyNames =
    " letter=L casedletter=L& uppercaseletter=Lu lowercaseletter=Ll titlecaseletter=Lt modifierletter=Lm "
    "otherletter=Lo"
    " mark=M nonspacingmark=Mn spacingmark=Mc enclosingmark=Me number=N decimalnumber=Nd letternumber=Nl "
    "othernumber=No"
    " punctuation=P connectorpunctuation=Pc dashpunctuation=Pd openpunctuation=Ps closepunctuation=Pe "
    "symbol=S"
    " mathsymbol=Sm currencysymbol=Sc modifiersymbol=Sk othersymbol=So separator=Z spaceseparator=Zs "
    "lineseparator=Zl"
    " paragraphseparator=Zp digit=Nd alphabetic=Alphabetic alpha=Alphabetic uppercase=Uppercase "
    "upper=Uppercase"
    " lowercase=Lowercase lower=Lowercase whitespace=White_Space space=White_Space ";
constexpr std::string_view kCategories =
    " c cc cf cn co l ll lm lo lt lu m mc me mn n nd nl no p pc pd pe pf pi po ps s sc sk sm so z zl zp zs ";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translation {
 public:
  explicit Translation(std::string_view in) : in_(in) {}

  std::string run() {
    if (in_.size() > kLongest) refuse(fmt::format("{} bytes (most: {})", in_.size(), kLongest));
    while (at_ < in_.size()) piece();
    return out_;
  }

 private:
  static constexpr std::size_t kNone = std::string::npos;

  [[noreturn]] void refuse(const std::string& what) const { throw std::invalid_argument(what); }
  bool next_is(std::string_view text) const { return in_.substr(at_, text.size()) == text; }

  void piece() {
    const char c = in_[at_];
    switch (c) {
      case '\\':
        atom_ = out_.size();
        return escape();
      case '[':
        atom_ = out_.size();
        ++at_;
        out_ += set(0);
        return;
      case '(':
        return open();
      case ')':
        if (groups_.empty()) refuse("a ) without its parenthesis (");
        atom_ = groups_.back();
        groups_.pop_back();
        return copy();
      case '*':
      case '+':
      case '?':
        require_atom();
        copy();
        return behind_quantifier();
      case '{':
        return interval();
      case '|':
      case '^':
      case '$':
        copy();
        atom_ = kNone;
        return;
      default:
        atom_ = out_.size();
        copy();
        while (at_ < in_.size() && (static_cast<unsigned char>(in_[at_]) & 0xc0) == 0x80) copy();
    }
  }
  void copy() { out_ += in_[at_++]; }

  void require_atom() const {
    if (atom_ == kNone) refuse(fmt::format("'{}' with nothing to repeat before it", in_.substr(at_, 5)));
  }
  void behind_quantifier() {
    if (at_ < in_.size() && (in_[at_] == '?' || in_[at_] == '+')) copy();
    atom_ = kNone;  // a quantifier of a quantifier means different things
  }

  // {n}, {n,}, {n,m} and {,m}; other braces are characters.
  void interval() {
    std::size_t end = at_ + 1;
    const auto digits = [&] {
      const std::size_t from = end;
      while (end < in_.size() && is_digit(in_[end])) ++end;
      return in_.substr(from, end - from);
    };
    const std::string_view low = digits();
    const bool comma = end < in_.size() && in_[end] == ',';
    if (comma) ++end;
    const std::string_view high = comma ? digits() : low;
    if (end >= in_.size() || in_[end] != '}' || (low.empty() && high.empty())) {
      atom_ = out_.size();
      out_ += "\\{";
      ++at_;
      return;
    }
    require_atom();
    if (low.size() > 5 || high.size() > 5)
      refuse(fmt::format("'{}' repeats too often", in_.substr(at_, end - at_ + 1)));
    out_ += comma ? fmt::format("{{{},{}}}", low.empty() ? "0" : low, high) : fmt::format("{{{}}}", low);
    at_ = end + 1;
    if (next_is("?")) {
      if (!comma) refuse("{n}?, which is no lazy repetition there");
      copy();
    } else if (next_is("+")) {  // no possessive repetition: one of the whole
      out_.insert(atom_, "(?:");
      out_ += ")+";
      ++at_;
    }
    atom_ = kNone;
  }

  void open() {
    if (static_cast<int>(groups_.size()) >= kDeepestGroup) refuse("groups nested too deeply");
    const std::size_t begin = out_.size();
    const bool first = begin == 0 || (!groups_.empty() && behind_opening_ == begin);
    ++at_;
    if (next_is("*")) refuse("(*...), a verb");
    if (next_is("?#")) {
      at_ = in_.find(')', at_);
      if (at_ == std::string_view::npos) refuse("a comment without its end");
      ++at_;
      atom_ = kNone;
      return;
    }
    if (!next_is("?")) {
      out_ += '(';
      return opened(begin);
    }
    for (const std::string_view known : {"?:", "?=", "?!", "?>", "?<=", "?<!"})
      if (next_is(known)) {
        at_ += known.size();
        (out_ += '(') += known;
        return opened(begin);
      }
    std::size_t end = at_ + 1;
    std::string flags;
    while (end < in_.size() && (in_[end] == 'i' || in_[end] == 'm' || in_[end] == '-')) {
      flags += in_[end] == 'm' ? 's' : in_[end];  // there . takes line feeds under m
      ++end;
    }
    if (flags.empty() || end >= in_.size() || (in_[end] != ':' && in_[end] != ')'))
      refuse(fmt::format("the group '({}'", in_.substr(at_, 8)));
    out_ += fmt::format("(?{}{}", flags, in_[end]);
    const bool whole = in_[end] == ')';
    at_ = end + 1;
    if (!whole) return opened(begin);
    if (!first) refuse("options that change within a group");  // which cut alternatives apart there
    behind_opening_ = out_.size();
    atom_ = kNone;
  }
  void opened(std::size_t begin) {
    groups_.push_back(begin);
    behind_opening_ = out_.size();
    atom_ = kNone;
  }

  void escape() {
    if (++at_ >= in_.size()) refuse("a \\ at the end");
    const char c = in_[at_];
    if (const std::string inside = set_of_letter(c); !inside.empty()) {
      ++at_;
      const bool all_but = c == 'S' || c == 'W' || c == 'H';
      out_ += fmt::format("[{}{}]", all_but ? "^" : "", inside);
      return;
    }
    switch (c) {
      case 'b':
        out_ += fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord);
        break;
      case 'B':
        out_ += fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWord);
        break;
      case 'A':
      case 'z':
      case 'Z':
      case 'R':
      case 'd':
      case 'D':
        (out_ += '\\') += c;
        break;
      default:
        if (c >= '1' && c <= '9' && (at_ + 1 >= in_.size() || !is_digit(in_[at_ + 1])))
          out_ += fmt::format("\\g{{{}}}", c);
        else
          return character_escape(out_);
    }
    ++at_;
  }

  // The inside of the set that \s, \w or \h is, or that \S, \W or \H are not.
  static std::string set_of_letter(char c) {
    if (c == 's' || c == 'S') return std::string(kSpaces);
    if (c == 'w' || c == 'W') return std::string(kWord);
    if (c == 'h' || c == 'H') return std::string(kHexDigits);
    return "";
  }

  // One character or property, within sets and outside; at_ is behind the backslash.
  void character_escape(std::string& out) {
    const char c = in_[at_];
    if (c == 'p' || c == 'P') return property(out);
    if (c == 'v') {
      out += "\\x{b}";
      ++at_;
    } else if (c == 'x' || c == 'u') {
      out += fmt::format("\\x{{{:x}}}", code());
    } else {
      const bool same = std::string_view("tnrfea").find(c) != std::string_view::npos;  // in both
      if ((is_letter(c) || is_digit(c)) && !same) refuse(fmt::format("\\{}", c));
      if (static_cast<unsigned char>(c) < 0x80) out += '\\';
      out += c;
      ++at_;
    }
  }

  unsigned code() {
    const bool u = in_[at_++] == 'u';
    const bool braces = !u && next_is("{");
    if (braces) ++at_;
    unsigned value = 0;
    std::size_t digits = 0;
    const std::size_t most = u ? 4 : braces ? 8 : 2;
    for (; digits < most && at_ < in_.size(); ++digits, ++at_) {
      const char c = in_[at_];
      const int d = is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
      if (d < 0) break;
      value = value * 16 + static_cast<unsigned>(d);
    }
    if (braces && !next_is("}")) refuse("\\x{...} without its end");
    if (braces) ++at_;
    if (digits == 0 || (u && digits < 4)) refuse("\\x or \\u without hexadecimal digits");
    if (!u && !braces && value >= 0x80) refuse("\\x80 to \\xff, which are bytes there");
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      refuse(fmt::format("\\x{{{:x}}}, no character", value));
    return value;
  }

  void property(std::string& out) {
    const char letter = in_[at_];
    const std::size_t end = in_.find('}', at_);
    if (at_ + 1 >= in_.size() || in_[at_ + 1] != '{' || end == std::string_view::npos)
      refuse(fmt::format("\\{} without {{name}}", letter));
    std::string_view given = in_.substr(at_ + 2, end - at_ - 2);
    at_ = end + 1;
    const bool no = given.starts_with("^") != (letter == 'P');
    if (given.starts_with("^")) given.remove_prefix(1);
    std::string name;
    for (const char c : given)
      if (c != ' ' && c != '_' && c != '-') name += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 32 : c);
    if (name.empty() || name.size() > 40 || !std::ranges::all_of(name, is_letter))
      refuse(fmt::format("\\{}{{{}}}", letter, given.substr(0, 60)));
    std::string meant;
    if (const std::size_t known = kPropertyNames.find(" " + name + "="); known != std::string_view::npos) {
      const std::size_t from = known + name.size() + 2;
      meant = kPropertyNames.substr(from, kPropertyNames.find(' ', from) - from);
    }
    if (meant.empty() && name.size() <= 2 && kCategories.find(" " + name + " ") != std::string_view::npos) {
      meant = name;
      meant[0] = static_cast<char>(meant[0] - 32);
    }
    if (meant.empty()) meant = "sc:" + name;  // a script; PCRE2 refuses what is none
    out += fmt::format("\\{}{{{}}}", no ? 'P' : 'p', meant);
  }

  // A set from behind its [ to behind its ], spelled for PCRE2; `depth` sets are around it, whose members its own become.
  std::string set(int depth) {
    if (depth > kDeepestGroup) refuse("sets nested too deeply");
    std::string inside;
    const bool negated = next_is("^");
    if (negated) ++at_;
    if (negated && depth > 0) refuse("a negated set within a set");
    bool first = true, behind_set = false;
    for (;; first = false) {
      if (at_ >= in_.size()) refuse("a set without its ]");
      const char c = in_[at_];
      if (c == ']' && !first) break;
      if (next_is("&&")) refuse("an intersection of sets (&&)");
      const bool after_set = std::exchange(behind_set, false);
      if (c == '[' && next_is("[:")) {
        inside += bracket_class();
        behind_set = true;
      } else if (c == '[') {
        ++at_;
        inside += set(depth + 1);
        behind_set = true;
      } else if (c == '\\') {
        behind_set = escape_in_set(inside);
      } else if (c == '-' && (after_set || first)) {
        inside += "\\-";
        ++at_;
      } else if (c == ']' || c == '^') {
        (inside += '\\') += c;
        ++at_;
      } else {
        inside += c;
        ++at_;
      }
    }
    ++at_;
    if (inside.empty()) refuse("an empty set");
    return depth > 0 ? inside : fmt::format("[{}{}]", negated ? "^" : "", inside);
  }

  // Whether it was more than one character.
  bool escape_in_set(std::string& inside) {
    if (++at_ >= in_.size()) refuse("a \\ at the end");
    const char c = in_[at_];
    if (c == 'b') {
      inside += "\\x{8}";
      ++at_;
      return false;
    }
    if (c == 'W' || c == 'H') refuse(fmt::format("\\{} within a set", c));
    if (c == 's' || c == 'S' || c == 'w' || c == 'h') {
      inside += c == 'S' ? std::string(kNoSpaces) : c == 'w' ? std::string(kWordClass) : set_of_letter(c);
    } else if (c == 'd' || c == 'D') {
      (inside += '\\') += c;
    } else {
      character_escape(inside);
      return c == 'p' || c == 'P';
    }
    ++at_;
    return true;
  }

  std::string_view bracket_class() {
    struct Class {
      std::string_view name, inside;
    };
    for (const Class& known :
         {Class{"[:alpha:]", R"(\p{Alphabetic})"}, Class{"[:digit:]", R"(\p{Nd})"},
          Class{"[:space:]", kSpaces}, Class{"[:word:]", kWordClass}, Class{"[:upper:]", R"(\p{Uppercase})"},
          Class{"[:lower:]", R"(\p{Lowercase})"}, Class{"[:xdigit:]", kHexDigits}})
      if (next_is(known.name)) {
        at_ += known.name.size();
        return known.inside;
      }
    refuse(fmt::format("the class '{}'", in_.substr(at_, 12)));
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = kNone;            // where in out_ what a quantifier would repeat begins
  std::size_t behind_opening_ = kNone;  // the place in out_ behind a group's opening
  std::vector<std::size_t> groups_;     // where in out_ the open ones begin
};

}  // namespace

std::string pcre2_of_oniguruma(std::string_view pattern) { return Translation(pattern).run(); }

}  // namespace sextant
