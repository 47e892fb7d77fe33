#include "runtime/data/tokenizer_frame.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace sextant {
namespace {

using nlohmann::json;

// bos_token or eos_token of tokenizer_config.json, or what LLaMA's family calls them.
void read_frame_token(const json& config, const char* key, const TokenizerVocabulary& v,
                      std::initializer_list<const char*> usual, std::optional<std::int32_t>& id,
                      std::string& token) {
  std::vector<std::string> names(usual.begin(), usual.end());
  if (config.is_object() && config.contains(key)) {
    const json& value = config.at(key);
    const json* content = &value;
    if (value.is_object()) {
      const auto found = value.find("content");
      if (found != value.end()) content = &*found;
    }
    if (content->is_string()) names = {content->get<std::string>()};
    if (content->is_null()) names.clear();
  }
  for (const auto& name : names)
    if (const auto found = v.added_ids.find(name); found != v.added_ids.end()) {
      id = found->second;
      token = name;
      return;
    }
}

constexpr const char* kPostProcessors =
    "TemplateProcessing, RobertaProcessing, ByteLevel, or a Sequence of them";

// The token in front of a text in the template, "" for none; nothing without a template.
std::optional<std::string> token_in_front(const TokenizerFile& file, const json& value,
                                          const std::string& path, int depth) {
  constexpr int kDeepest = 8;
  if (!value.is_object() || depth > kDeepest) file.refuse(path, brief(value), kPostProcessors);
  const std::string type = file.text(value, path, "type");
  if (type == "ByteLevel") return {};  // changes offsets alone
  if (type == "Sequence") {
    std::optional<std::string> found;
    const json& list = file.member(value, path, "processors", json::value_t::array, "an array");
    for (std::size_t i = 0; i < list.size(); ++i)
      if (auto one = token_in_front(file, list[i], fmt::format("{}.processors[{}]", path, i), depth + 1);
          one && (!found || !one->empty()))
        found = std::move(one);
    return found;
  }
  if (type == "RobertaProcessing") {
    const json& cls = file.member(value, path, "cls", json::value_t::array, R"(["token", id])");
    if (cls.empty() || !cls[0].is_string()) file.refuse(path + ".cls", brief(cls), R"(["token", id])");
    return cls[0].get<std::string>();
  }
  if (type != "TemplateProcessing") file.refuse(path + ".type", "\"" + type + "\"", kPostProcessors);
  const json& single = file.member(value, path, "single", json::value_t::array, "an array");
  for (std::size_t i = 0; i < single.size(); ++i) {
    const std::string at = fmt::format("{}.single[{}]", path, i);
    if (!single[i].is_object()) file.refuse(at, brief(single[i]), "SpecialToken or Sequence");
    if (single[i].contains("Sequence")) break;
    const json& token = file.member(single[i], at, "SpecialToken", json::value_t::object, "an object");
    return file.text(token, at + ".SpecialToken", "id");
  }
  return "";
}

}  // namespace

void read_tokenizer_frame(const TokenizerFile& file, const json& root, const json& config,
                          const TokenizerVocabulary& v, TokenizerInfo& info) {
  read_frame_token(config, "bos_token", v, {"<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>"}, info.bos,
                   info.bos_name);
  read_frame_token(config, "eos_token", v, {"<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>"}, info.eos,
                   info.eos_name);
  std::optional<std::string> front;
  if (!absent(root, "post_processor"))
    front = token_in_front(file, root.at("post_processor"), "post_processor", 0);
  const bool configured =
      config.is_object() && config.contains("add_bos_token") && config.at("add_bos_token").is_boolean();
  if (configured)
    info.bos_in_front = config.at("add_bos_token").get<bool>();
  else if (front)
    info.bos_in_front = !info.bos_name.empty() && *front == info.bos_name;
  else
    info.bos_in_front = info.bos != info.eos;  // one token between documents is enough
}

}  // namespace sextant
