#include "runtime/data/tokenizer_steps.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "runtime/data/unicode_forms.hpp"
#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

using nlohmann::json;

constexpr const char* kNormalizers =
    "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents, ByteLevel, or a Sequence of "
    "them";
constexpr const char* kPreTokenizers =
    "ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit, or a "
    "Sequence of them";

// \w+|[^\w\s]+ as Rust's regex has it.
constexpr const char* kRustWords =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\s]+)";

// One step of the file, and what it is called there.
struct FileStep {
  const json* value;
  std::string path, type;
};

// The steps of a Sequence and of those within it, in order.
void flatten(const TokenizerFile& file, const json& value, const std::string& path, const char* list,
             const char* accepted, int depth, std::vector<FileStep>& out) {
  constexpr int kDeepest = 8;
  constexpr std::size_t kMost = 64;
  if (!value.is_object()) file.refuse(path, brief(value), accepted);
  const auto type = value.find("type");
  if (type == value.end()) file.refuse(path + ".type", "missing", accepted);
  if (!type->is_string()) file.refuse(path + ".type", brief(*type), accepted);
  if (*type != "Sequence") {
    if (out.size() >= kMost) file.refuse(path, "one more", fmt::format("at most {} steps", kMost));
    return out.push_back({&value, path, type->get<std::string>()});
  }
  if (depth >= kDeepest)
    file.refuse(path, "a Sequence", fmt::format("at most {} within each other", kDeepest));
  const json& steps = file.member(value, path, list, json::value_t::array, "an array");
  for (std::size_t i = 0; i < steps.size(); ++i)
    flatten(file, steps[i], fmt::format("{}.{}[{}]", path, list, i), list, accepted, depth + 1, out);
}

std::vector<FileStep> steps_of(const TokenizerFile& file, const json& root, const char* key, const char* list,
                               const char* accepted) {
  std::vector<FileStep> steps;
  if (!absent(root, key)) flatten(file, root.at(key), key, list, accepted, 0, steps);
  return steps;
}

// {"String": ...} or {"Regex": ...}.
struct FilePattern {
  std::string text;
  bool regex = false;
};

FilePattern read_pattern(const TokenizerFile& file, const FileStep& step) {
  const json& pattern = file.member(*step.value, step.path, "pattern", json::value_t::object,
                                    R"({"String": ...} or {"Regex": ...})");
  const std::string path = step.path + ".pattern";
  FilePattern read;
  read.regex = pattern.contains("Regex");
  if (read.regex == pattern.contains("String"))
    file.refuse(path, brief(pattern), R"({"String": ...} or {"Regex": ...})");
  read.text = file.text(pattern, path, read.regex ? "Regex" : "String");
  if (read.text.empty()) file.refuse(path, "an empty pattern", "what is to be found");
  return read;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c <= ' ' || static_cast<unsigned char>(c) >= 0x7f;
    if (!plain) out += '\\';
    out += c;
  }
  return out;
}

SplitPattern compiled(const TokenizerFile& file, const FileStep& step, const FilePattern& pattern) {
  return {pattern.regex ? pattern.text : escaped(pattern.text), file.name(),
          step.path + (pattern.regex ? ".pattern.Regex" : ".pattern.String")};
}

NormalizerStep read_normalizer(const TokenizerFile& file, const FileStep& step) {
  if (step.type == "NFC") return unicode_form_step(UnicodeForm::nfc);
  if (step.type == "NFD") return unicode_form_step(UnicodeForm::nfd);
  if (step.type == "NFKC") return unicode_form_step(UnicodeForm::nfkc);
  if (step.type == "NFKD") return unicode_form_step(UnicodeForm::nfkd);
  if (step.type == "Lowercase") return lower_case_step();
  if (step.type == "StripAccents") return strip_accents_step();
  if (step.type == "ByteLevel") return byte_letters_step();
  if (step.type == "Strip") {
    const auto strips = [&](const char* side) {
      return file.member(*step.value, step.path, side, json::value_t::boolean, "true or false").get<bool>();
    };
    const bool left = strips("strip_left");
    return strip_step(left, strips("strip_right"));
  }
  if (step.type == "Prepend") return prepend_step(file.text(*step.value, step.path, "prepend"));
  if (step.type == "Replace") {
    FilePattern pattern = read_pattern(file, step);
    std::string by = file.text(*step.value, step.path, "content");
    if (!pattern.regex) return replace_step(std::move(pattern.text), std::move(by));
    return replace_step(compiled(file, step, pattern), std::move(by));
  }
  const bool table = step.type == "Precompiled" || step.type == "Nmt";
  file.refuse(step.path + ".type", "\"" + step.type + "\"", kNormalizers,
              table ? "name the sentencepiece model (tokenizer.model) that it was made of instead" : "");
}

bool is_form(const std::string& type) {
  return type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD";
}

// What a Replace of spaces puts there; empty when the step is none.
std::string space_mark(const TokenizerFile& file, const FileStep& step) {
  if (step.type != "Replace") return "";
  const FilePattern pattern = read_pattern(file, step);
  return !pattern.regex && pattern.text == " " ? file.text(*step.value, step.path, "content") : "";
}

SplitBehavior read_behavior(const TokenizerFile& file, const FileStep& step, bool required) {
  constexpr std::array<const char*, 5> kNames = {"Removed", "Isolated", "MergedWithPrevious",
                                                 "MergedWithNext", "Contiguous"};
  if (!required && absent(*step.value, "behavior")) return SplitBehavior::isolated;
  const std::string given = file.text(*step.value, step.path, "behavior");
  const auto found = std::ranges::find(kNames, given);
  if (found == kNames.end())
    file.refuse(step.path + ".behavior", "\"" + given + "\"",
                "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  return static_cast<SplitBehavior>(found - kNames.begin());
}

std::string one_character(const TokenizerFile& file, const FileStep& step, const char* key) {
  std::string character = file.text(*step.value, step.path, key);
  if (character.empty() || utf8_character(character, 0).bytes != character.size())
    file.refuse(member_path(step.path, key), brief(character), "one character");
  return character;
}

struct Metaspace {
  std::string mark;
  MetaspacePrefix prefix = MetaspacePrefix::always;
  bool split = true;
};

Metaspace read_metaspace(const TokenizerFile& file, const FileStep& step) {
  Metaspace read;
  read.mark = one_character(file, step, "replacement");
  const std::string scheme = file.text_if_any(*step.value, step.path, "prepend_scheme").value_or("always");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    file.refuse(step.path + ".prepend_scheme", "\"" + scheme + "\"", "always, first or never");
  if (scheme == "first") read.prefix = MetaspacePrefix::first;
  if (scheme == "never") read.prefix = MetaspacePrefix::never;
  if (!file.flag(*step.value, step.path, "add_prefix_space", true) && read.prefix != MetaspacePrefix::never)
    file.refuse(step.path + ".add_prefix_space", "false", "true, with this prepend_scheme",
                "the tokenizers library refuses it too");
  read.split = file.flag(*step.value, step.path, "split", true);
  return read;
}

// The pre-tokenizers but ByteLevel.
PreTokenizerStep read_pre_tokenizer(const TokenizerFile& file, const FileStep& step) {
  if (step.type == "Split") {
    const SplitBehavior behavior = read_behavior(file, step, true);
    const bool inverted = file.flag(*step.value, step.path, "invert", false);
    return split_step(compiled(file, step, read_pattern(file, step)), behavior, inverted);
  }
  if (step.type == "Metaspace") {
    Metaspace read = read_metaspace(file, step);
    return metaspace_step(std::move(read.mark), read.prefix, read.split);
  }
  if (step.type == "Digits")
    return split_step(is_numeric, file.flag(*step.value, step.path, "individual_digits", false)
                                      ? SplitBehavior::isolated
                                      : SplitBehavior::contiguous);
  if (step.type == "Punctuation") return split_step(is_punctuation, read_behavior(file, step, false));
  if (step.type == "WhitespaceSplit") return split_step(is_white_space, SplitBehavior::removed);
  if (step.type == "Whitespace")
    return split_step(SplitPattern(kRustWords, file.name(), step.path), SplitBehavior::removed, true);
  if (step.type == "CharDelimiterSplit") {
    const char32_t delimiter = utf8_character(one_character(file, step, "delimiter"), 0).code;
    return split_step([delimiter](char32_t c) { return c == delimiter; }, SplitBehavior::removed);
  }
  file.refuse(step.path + ".type", "\"" + step.type + "\"", kPreTokenizers);
}

// Of the published patterns those that end every match at such a place; the test campaign tries each.
constexpr std::array<std::string_view, 5> kBetweenLines = {
    kLlama3Split,
    // Qwen 2 and 3
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // OLMo 2 and others of cl100k
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
    // Mistral's tekken
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// Where texts may be divided, of a byte-level tokenizer that cuts by this regular expression alone.
CutRule cut_rule_of(std::string_view pattern) {
  if (std::ranges::find(kBetweenLines, pattern) != kBetweenLines.end()) return CutRule::between_lines;
  return pattern == kGpt2Split ? CutRule::behind_one_feed : CutRule::nowhere;
}

class Reader {
 public:
  Reader(const TokenizerFile& file, const json& root, bool letters) : file_(file), letters_(letters) {
    read_normalizers(steps_of(file, root, "normalizer", "normalizers", kNormalizers));
    read_pre_tokenizers(steps_of(file, root, "pre_tokenizer", "pretokenizers", kPreTokenizers));
  }
  TokenizerSteps take() { return std::move(out_); }

 private:
  void read_normalizers(const std::vector<FileStep>& steps) {
    for (const FileStep& step : steps) out_.normalizer.add(read_normalizer(file_, step));
    plain_ = steps.empty();
    out_.letters = !plain_ && steps.back().type == "ByteLevel";
    forms_ = std::ranges::all_of(steps, [](const FileStep& s) { return is_form(s.type); });
    for (const FileStep& step : steps)
      if (std::string mark = space_mark(file_, step); !mark.empty()) out_.mark = std::move(mark);
    const bool prepends = steps.size() == 2 && steps[0].type == "Prepend";
    marks_words_ =
        !out_.mark.empty() && (steps.size() == 1 || (prepends && space_mark(file_, steps[1]) == out_.mark &&
                                                     steps[0].value->at("prepend") == out_.mark));
    out_.prefix = std::ranges::any_of(steps, [&](const FileStep& s) {
      return s.type == "Prepend" &&
             (out_.mark.empty() ? s.value->at("prepend") == " " : s.value->at("prepend") == out_.mark);
    });
  }

  void read_pre_tokenizers(const std::vector<FileStep>& steps) {
    bool keeps = true;  // every byte where it is
    CutRule rule = CutRule::nowhere;
    std::size_t cutting = 0;
    for (const FileStep& step : steps) {
      const bool last = &step == &steps.back();
      if (step.type == "ByteLevel") {
        read_byte_level(step, last && !letters_, keeps, rule, cutting);
        continue;
      }
      if (step.type == "Metaspace") {
        const Metaspace read = read_metaspace(file_, step);
        out_.mark = read.mark;
        out_.prefix = read.prefix != MetaspacePrefix::never;
        marks_words_ = plain_ && steps.size() == 1;
      } else if (marks_words_ && !replaces_nothing(step)) {
        marks_words_ = false;
      }
      keeps = keeps && keeps_text(step);
      ++cutting;
      rule = cutting == 1 && isolates(step) ? cut_rule_of(read_pattern(file_, step).text) : CutRule::nowhere;
      out_.pre_tokenizer.add(read_pre_tokenizer(file_, step));
    }
    out_.restores_text = plain_ && keeps && out_.bytes;
    if (out_.bytes && forms_ && keeps)
      out_.cut = rule;
    else if (!out_.bytes && marks_words_)
      out_.cut = out_.prefix ? CutRule::at_spaces : CutRule::before_spaces;
  }

  void read_byte_level(const FileStep& step, bool left_out, bool& keeps, CutRule& rule,
                       std::size_t& cutting) {
    if (file_.member(*step.value, step.path, "add_prefix_space", json::value_t::boolean, "true or false")
            .get<bool>()) {
      out_.pre_tokenizer.add(prefix_space_step());
      out_.prefix = true;
      keeps = false;
    }
    if (file_.flag(*step.value, step.path, "use_regex", true)) {
      rule = ++cutting == 1 ? cut_rule_of(kGpt2Split) : CutRule::nowhere;
      out_.pre_tokenizer.add(
          split_step(SplitPattern(kGpt2Split, file_.name(), step.path), SplitBehavior::isolated, false));
    }
    out_.bytes = left_out;
    if (!left_out) {
      out_.pre_tokenizer.add(byte_letters_pieces_step());
      out_.letters = true;
    }
    marks_words_ = false;
  }

  // Cuts at matches and keeps all: also where what is between matches is removed, and a known pattern leaves nothing there.
  bool isolates(const FileStep& step) const {
    if (step.type != "Split" || !read_pattern(file_, step).regex) return false;
    const SplitBehavior behavior = read_behavior(file_, step, true);
    return behavior == SplitBehavior::isolated ||
           (behavior == SplitBehavior::removed && file_.flag(*step.value, step.path, "invert", false) &&
            cut_rule_of(read_pattern(file_, step).text) != CutRule::nowhere);
  }
  bool keeps_text(const FileStep& step) const {
    if (step.type == "Digits" || isolates(step)) return true;
    return (step.type == "Split" || step.type == "Punctuation") &&
           read_behavior(file_, step, false) != SplitBehavior::removed;
  }
  // A split at spaces where the normalizer has left none, as Gemma has it.
  bool replaces_nothing(const FileStep& step) const {
    if (step.type != "Split" || plain_) return false;
    const FilePattern pattern = read_pattern(file_, step);
    return !pattern.regex && pattern.text == " " && out_.mark.find(' ') == std::string::npos &&
           !file_.flag(*step.value, step.path, "invert", false);
  }

  const TokenizerFile& file_;
  bool letters_;
  TokenizerSteps out_;
  bool plain_ = false;        // no normalizer
  bool forms_ = false;        // none but Unicode's forms
  bool marks_words_ = false;  // spaces are replaced, perhaps one put in front, and nothing else is done
};

}  // namespace

TokenizerSteps read_tokenizer_steps(const TokenizerFile& file, const json& root, bool letters) {
  return Reader(file, root, letters).take();
}

}  // namespace sextant
