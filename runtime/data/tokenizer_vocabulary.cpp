#include "runtime/data/tokenizer_vocabulary.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace sextant {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostId = 1 << 24;
constexpr std::size_t kLongestAdded = 1024;  // bytes

// Ids may leave holes, but not so many that a small file asks for much memory.
std::int64_t end_of_ids(std::size_t tokens) {
  return std::min<std::int64_t>(kMostId, 4 * static_cast<std::int64_t>(tokens) + 65536);
}

const json& added_list(const TokenizerFile& file, const json& root) {
  static const json none = json::array();
  return absent(root, "added_tokens")
             ? none
             : file.member(root, "", "added_tokens", json::value_t::array, "an array");
}

// As the tokenizers library gives ids: that of the model, or the next that is free.
void read_added(const TokenizerFile& file, const json& list, TokenizerVocabulary& v) {
  auto next = static_cast<std::int64_t>(v.ids.size());
  std::set<std::int32_t> taken;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string path = fmt::format("added_tokens[{}]", i);
    const json& value = list[i];
    if (!value.is_object()) file.refuse(path, brief(value), "an object");
    TokenizerVocabulary::Added added;
    AddedToken& token = added.token;
    token.content = file.text(value, path, "content");
    const auto id = value.find("id");
    token.id =
        file.id(id == value.end() ? json() : *id, path + ".id", end_of_ids(v.ids.size() + list.size()));
    if (token.content.empty()) continue;  // the library passes over it
    if (token.content.size() > kLongestAdded)
      file.refuse(path + ".content", fmt::format("{} bytes", token.content.size()),
                  fmt::format("at most {}", kLongestAdded));
    token.special = file.flag(value, path, "special", false);
    token.single_word = file.flag(value, path, "single_word", false);
    token.lstrip = file.flag(value, path, "lstrip", false);
    token.rstrip = file.flag(value, path, "rstrip", false);
    added.normalized = file.flag(value, path, "normalized", !token.special);
    const auto own = v.ids.find(token.content);
    const std::int64_t given = own != v.ids.end() ? own->second : next;
    if (token.id != given)
      file.refuse("added_tokens", fmt::format("id {} of '{}'", token.id, brief(token.content)),
                  own != v.ids.end() ? fmt::format("{} as in model.vocab", given)
                                     : fmt::format("{}, the next that is free", given),
                  "the tokenizers library would give it that one");
    if (!v.added_ids.emplace(token.content, token.id).second || !taken.insert(token.id).second)
      file.refuse(path, fmt::format("'{}' again", brief(token.content)), "every token once");
    if (own == v.ids.end()) ++next;
    v.size = std::max<std::int64_t>(v.size, token.id + 1);
    v.added.push_back(std::move(added));
  }
}

}  // namespace

TokenizerVocabulary read_tokenizer_vocabulary(const TokenizerFile& file, const json& root,
                                              const json& model) {
  TokenizerVocabulary v;
  const json& vocab = file.member(model, "model", "vocab", json::value_t::object, "an object of token: id");
  const json& added = added_list(file, root);
  const std::int64_t end = end_of_ids(vocab.size() + added.size());
  std::vector<bool> claimed;
  v.ids.reserve(vocab.size());
  for (const auto& [token, id_value] : vocab.items()) {
    const auto key = [&spelled = token] { return fmt::format("model.vocab[{}]", brief(spelled)); };
    if (token.empty()) file.refuse(key(), "an empty token", "a token with text");
    const std::int32_t id = file.id(id_value, key(), end);
    const auto place = static_cast<std::size_t>(id);
    if (claimed.size() <= place) claimed.resize(place + 1);
    if (claimed[place]) file.refuse(key(), fmt::format("id {}", id), "an id of its own");
    claimed[place] = true;
    v.ids.emplace(token, id);
    v.size = std::max<std::int64_t>(v.size, id + 1);
  }
  read_added(file, added, v);
  return v;
}

std::vector<PairMerge> read_tokenizer_merges(const TokenizerFile& file, const json& model,
                                             const TokenizerVocabulary& v, const std::string& prefix) {
  const json& list = file.member(model, "model", "merges", json::value_t::array, "an array of pairs");
  std::vector<PairMerge> merges;
  merges.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto path = [&] { return fmt::format("model.merges[{}]", i); };
    std::string left, right;
    if (const json& pair = list[i]; pair.is_string()) {  // "a b", before tokenizers 0.20
      const auto& text = pair.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      const std::size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
    } else if (pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string()) {
      left = pair[0].get<std::string>();
      right = pair[1].get<std::string>();
    }
    if (left.empty() || right.empty()) file.refuse(path(), brief(list[i]), "two tokens");
    if (!right.starts_with(prefix))
      file.refuse(path(), brief(list[i]), fmt::format("a second token that begins with '{}'", prefix),
                  "model.continuing_subword_prefix asks for it");
    const auto l = v.ids.find(left), r = v.ids.find(right),
               both = v.ids.find(left + right.substr(prefix.size()));
    if (l == v.ids.end() || r == v.ids.end() || both == v.ids.end())
      file.refuse(path(), brief(list[i]), "two tokens of model.vocab whose union is a token");
    merges.push_back({l->second, r->second, static_cast<std::int32_t>(i), both->second});
  }
  return merges;
}

AddedTokens added_tokens_of(const TokenizerFile& file, const TokenizerVocabulary& v,
                            const TextNormalizer& normalizer, bool normalized) {
  std::vector<AddedToken> tokens;
  std::set<std::string> contents;
  TextNormalizer::Scratch scratch;
  for (const TokenizerVocabulary::Added& added : v.added) {
    if (added.normalized != normalized) continue;
    AddedToken token = added.token;
    if (normalized) token.content = std::string(normalizer.apply(added.token.content, scratch));
    if (token.content.empty() || !contents.insert(token.content).second)
      file.refuse("added_tokens", brief(added.token.content),
                  "tokens that are something, and unlike each other, when the normalizer is done with them",
                  "the tokenizers library refuses it too");
    tokens.push_back(std::move(token));
  }
  return AddedTokens(std::move(tokens));
}

}  // namespace sextant
