// tokenizer.json (github.com/huggingface/tokenizers), the kind that Llama 3 ships: byte-level BPE with a Split pattern.
// Whatever else the format can say and would change the ids is refused rather than passed over.
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/json_io.hpp"
#include "runtime/data/bpe_tokenizer.hpp"

namespace sextant {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostId = 1 << 24;

class File {
 public:
  explicit File(std::string name) : name_(std::move(name)) {}
  [[noreturn]] void refuse(std::string key, std::string found, std::string expected,
                           std::string hint = "") const {
    throw ConfigError(Problem{name_, std::move(key), std::move(found), std::move(expected), std::move(hint)});
  }
  const json& member(const json& object, const std::string& path, const char* key, json::value_t type,
                     const char* type_name) const {
    const auto found = object.find(key);
    const std::string full = path.empty() ? key : path + "." + key;
    if (found == object.end()) refuse(full, "missing", type_name);
    if (found->type() != type) refuse(full, short_text(*found), type_name);
    return *found;
  }
  static std::string short_text(const json& value) {
    std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() <= 60 ? text : text.substr(0, 57) + "...";
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

bool absent(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null();
}

// A field whose value, if it has one, must be `value`.
void require(const File& file, const json& object, const std::string& path, const char* key,
             const json& value, const char* hint = "") {
  if (absent(object, key) || object.at(key) == value) return;
  file.refuse(path.empty() ? key : path + "." + key, File::short_text(object.at(key)), value.dump(), hint);
}

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else {  // the alphabet ends below U+0800
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

// GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and on (encoder.py,
// bytes_to_unicode).
std::map<std::string, char, std::less<>> byte_alphabet() {
  std::map<std::string, char, std::less<>> alphabet;
  std::uint32_t next = 0x100;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    std::string character;
    append_utf8(character, printable ? b : next++);
    alphabet.emplace(std::move(character), static_cast<char>(b));
  }
  return alphabet;
}

std::optional<std::string> to_bytes(std::string_view token) {
  static const auto alphabet = byte_alphabet();
  std::string bytes;
  while (!token.empty()) {
    const std::size_t length = static_cast<unsigned char>(token[0]) < 0x80 ? 1 : 2;
    const auto found = alphabet.find(token.substr(0, length));
    if (found == alphabet.end()) return {};
    bytes += found->second;
    token.remove_prefix(std::min(length, token.size()));
  }
  return bytes;
}

// The pattern of the pre-tokenizer: a ByteLevel alone has GPT-2's, a Split before it has its own.
SplitPattern read_pattern(const File& file, const json& root) {
  const char* accepted = "ByteLevel, or a Sequence of Split (Isolated) and ByteLevel, as of Llama 3";
  if (absent(root, "pre_tokenizer")) file.refuse("pre_tokenizer", "none", accepted);
  const json& pre = file.member(root, "", "pre_tokenizer", json::value_t::object, accepted);
  std::vector<const json*> steps;
  if (pre.value("type", json()) == "Sequence")
    for (const json& step :
         file.member(pre, "pre_tokenizer", "pretokenizers", json::value_t::array, "an array"))
      steps.push_back(&step);
  else
    steps.push_back(&pre);
  std::optional<SplitPattern> pattern;
  bool byte_level = false;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const json& step = *steps[i];
    const std::string path =
        steps.size() == 1 ? "pre_tokenizer" : fmt::format("pre_tokenizer.pretokenizers[{}]", i);
    if (!step.is_object()) file.refuse(path, File::short_text(step), accepted);
    const json type = step.value("type", json());
    if (type == "Split" && !pattern && !byte_level) {
      require(file, step, path, "behavior", "Isolated");
      require(file, step, path, "invert", false);
      const json& p = file.member(step, path, "pattern", json::value_t::object, "an object");
      const json& regex = file.member(p, path + ".pattern", "Regex", json::value_t::string, "a string");
      pattern.emplace(regex.get_ref<const std::string&>(), file.name(), path + ".pattern.Regex");
    } else if (type == "ByteLevel" && !byte_level) {
      byte_level = true;
      require(file, step, path, "add_prefix_space", false);
      const bool own = absent(step, "use_regex") || step.at("use_regex") != json(false);
      if (own && pattern) file.refuse(path + ".use_regex", "true", "false behind a Split");
      if (own) pattern.emplace(kGpt2Split, file.name(), path);
    } else {
      file.refuse(path + ".type", File::short_text(type), accepted);
    }
  }
  if (!byte_level || !pattern) file.refuse("pre_tokenizer", File::short_text(pre), accepted);
  return *pattern;
}

std::int64_t read_id(const File& file, const json& value, const std::string& key) {
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() >= kMostId)
    file.refuse(key, File::short_text(value), fmt::format("a whole number from 0 to {}", kMostId - 1));
  return value.get<std::int64_t>();
}

struct Vocabulary {
  std::vector<std::string> tokens;                       // bytes by id
  std::map<std::string, std::int32_t, std::less<>> ids;  // by their spelling in the file
  std::map<std::string, std::int32_t, std::less<>> added;
  std::int64_t size = 0;
};

Vocabulary read_vocabulary(const File& file, const json& root, const json& model) {
  Vocabulary v;
  const json& vocab = file.member(model, "model", "vocab", json::value_t::object, "an object of token: id");
  const auto claim = [&](std::int64_t id, const std::string& key) {
    v.size = std::max(v.size, id + 1);
    if (v.tokens.size() < static_cast<std::size_t>(v.size)) v.tokens.resize(static_cast<std::size_t>(v.size));
    if (!v.tokens[static_cast<std::size_t>(id)].empty())
      file.refuse(key, fmt::format("id {}", id), "an id of its own");
  };
  const json none = json::array();
  const json& added = absent(root, "added_tokens")
                          ? none
                          : file.member(root, "", "added_tokens", json::value_t::array, "an array");
  for (std::size_t i = 0; i < added.size(); ++i) {
    const std::string path = fmt::format("added_tokens[{}]", i);
    if (!added[i].is_object()) file.refuse(path, File::short_text(added[i]), "an object");
    const json& content = file.member(added[i], path, "content", json::value_t::string, "a string");
    const auto id_at = added[i].find("id");
    const std::int64_t id = read_id(file, id_at == added[i].end() ? json() : *id_at, path + ".id");
    v.size = std::max(v.size, id + 1);
    v.added.emplace(content.get<std::string>(), static_cast<std::int32_t>(id));
  }
  for (const auto& [token, id_value] : vocab.items()) {
    const std::string key = fmt::format("model.vocab[\"{}\"]", token);
    const std::int64_t id = read_id(file, id_value, key);
    if (const auto special = v.added.find(token); special != v.added.end()) {
      if (special->second != id)
        file.refuse(key, fmt::format("id {}", id), fmt::format("{} as in added_tokens", special->second));
      continue;
    }
    auto bytes = to_bytes(token);
    if (!bytes || bytes->empty())
      file.refuse(key, "a character outside of the byte alphabet", "a byte-level vocabulary, as of Llama 3",
                  "LLaMA 1 and 2: name their tokenizer.model instead");
    claim(id, key);
    v.tokens[static_cast<std::size_t>(id)] = std::move(*bytes);
    v.ids.emplace(token, static_cast<std::int32_t>(id));
  }
  for (const auto& [content, id] : v.added)
    if (static_cast<std::size_t>(id) < v.tokens.size() && !v.tokens[static_cast<std::size_t>(id)].empty())
      file.refuse("added_tokens", fmt::format("id {} of '{}'", id, content),
                  "an id that model.vocab does not use");
  v.tokens.resize(static_cast<std::size_t>(v.size));
  return v;
}

std::vector<PairMerge> read_merges(const File& file, const json& model, const Vocabulary& v) {
  const json& list = file.member(model, "model", "merges", json::value_t::array, "an array of pairs");
  std::vector<PairMerge> merges;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto path = [&] { return fmt::format("model.merges[{}]", i); };
    std::string left, right;
    if (const json& pair = list[i]; pair.is_string()) {  // "a b", before tokenizers 0.20
      const auto& text = pair.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      left = text.substr(0, space), right = space == std::string::npos ? "" : text.substr(space + 1);
    } else if (pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string()) {
      left = pair[0].get<std::string>(), right = pair[1].get<std::string>();
    }
    const auto l = v.ids.find(left), r = v.ids.find(right), both = v.ids.find(left + right);
    if (left.empty() || right.empty()) file.refuse(path(), File::short_text(list[i]), "two tokens");
    if (l == v.ids.end() || r == v.ids.end() || both == v.ids.end())
      file.refuse(path(), File::short_text(list[i]), "two tokens of model.vocab whose union is a token");
    merges.push_back({l->second, r->second, static_cast<std::int32_t>(i), both->second});
  }
  return merges;
}

// bos_token and eos_token of tokenizer_config.json, or what LLaMA calls them.
void read_frame_token(const json& config, const char* key, const Vocabulary& v,
                      std::initializer_list<const char*> usual, std::optional<std::int32_t>& id,
                      std::string& token) {
  std::vector<std::string> names(usual.begin(), usual.end());
  if (config.is_object() && !absent(config, key)) {
    const json& value = config.at(key);
    const json& content = value.is_object() ? value.value("content", json()) : value;
    if (content.is_string()) names = {content.get<std::string>()};
  }
  for (const auto& name : names)
    if (const auto found = v.added.find(name); found != v.added.end()) {
      id = found->second, token = name;
      return;
    }
}

}  // namespace

Tokenizer parse_tokenizer_json(std::string_view text, const std::string& file_name,
                               std::string_view config_text) {
  const File file(file_name);
  const json root = parse_json(text, file_name);
  const json config = config_text.empty() ? json() : parse_json(config_text, "tokenizer_config.json");
  if (!root.is_object()) file.refuse("", File::short_text(root), "an object");
  const json& model = file.member(root, "", "model", json::value_t::object, "an object");
  const char* other = "LLaMA 1 and 2: name their tokenizer.model instead";
  if (!absent(model, "type")) require(file, model, "model", "type", "BPE", other);
  require(file, model, "model", "byte_fallback", false, other);
  if (!absent(root, "normalizer"))
    file.refuse("normalizer", File::short_text(root.at("normalizer")), "none, as of Llama 3", other);
  require(file, model, "model", "continuing_subword_prefix", "");
  require(file, model, "model", "end_of_word_suffix", "");
  if (!absent(model, "dropout"))
    require(file, model, "model", "dropout", 0.0, "training data is the same each time");
  const bool whole = !absent(model, "ignore_merges") && model.at("ignore_merges") == json(true);
  SplitPattern split = read_pattern(file, root);
  Vocabulary v = read_vocabulary(file, root, model);
  auto merges = read_merges(file, model, v);

  TokenizerInfo info{.kind = TokenizerKind::bpe_json, .vocab_size = static_cast<int>(v.size)};
  read_frame_token(config, "bos_token", v, {"<|begin_of_text|>", "<s>", "<|startoftext|>"}, info.bos,
                   info.bos_name);
  read_frame_token(config, "eos_token", v, {"<|end_of_text|>", "</s>", "<|endoftext|>"}, info.eos,
                   info.eos_name);
  info.source = file_name;
  return make_bpe_tokenizer(std::move(info), {.tokens = std::move(v.tokens),
                                              .merges = std::move(merges),
                                              .split = std::move(split),
                                              .whole_pieces = whole});
}

}  // namespace sextant
