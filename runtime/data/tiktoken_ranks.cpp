// tokenizer.model of Llama 3: a line for each token, its bytes in base64 and its rank. A pair merges when its bytes
// together are a token, the lowest rank first; pattern and special tokens stand in Meta's code, not in the file
// (github.com/meta-llama/llama3, llama/tokenizer.py).
#include <charconv>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/text_pipeline.hpp"

namespace sextant {
namespace {

constexpr std::size_t kMostRanks = 1U << 24;
constexpr std::size_t kLlama3Ranks = 128000;
constexpr std::size_t kFewRanks =
    100000;                     // up to here a small one of the same making; published others have more
constexpr int kReserved = 256;  // begin_of_text, end_of_text and 254 more

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

std::optional<std::string> base64_decode(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return {};
  std::size_t padding = 0;
  while (padding < 2 && text.back() == '=') {
    text.remove_suffix(1);
    ++padding;
  }
  std::string bytes;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int value = base64_value(c);
    if (value < 0) return {};
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    if ((held += 6) >= 8) {
      held -= 8;
      bytes += static_cast<char>(bits >> held & 0xff);
    }
  }
  return bytes;
}

// Tokens by rank, and ranks by token.
struct TiktokenRanks {
  std::vector<std::string> tokens;
  std::unordered_map<std::string, std::int32_t> ranks;
};

TiktokenRanks read_ranks(std::string_view text, const std::string& file) {
  TiktokenRanks read;
  auto& [tokens, ranks] = read;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const auto refuse = [&](std::string found, std::string expected) {
      throw ConfigError(
          Problem{fmt::format("{}:{}", file, number), "", std::move(found), std::move(expected), ""});
    };
    const std::size_t space = std::min(line.find(' '), line.size());
    const auto bytes = base64_decode(line.substr(0, space));
    std::size_t rank = 0;
    const std::string_view digits = line.substr(std::min(space + 1, line.size()));
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (!bytes || bytes->empty() || error != std::errc{} || end != digits.data() + digits.size())
      refuse(fmt::format("'{}'", line.substr(0, 60)),
             "a token in base64, a space and its rank, as in Llama 3's tokenizer.model");
    if (rank != tokens.size() || rank >= kMostRanks)
      refuse(fmt::format("rank {}", rank), fmt::format("rank {}: they ascend by one", tokens.size()));
    if (!ranks.emplace(*bytes, static_cast<std::int32_t>(rank)).second)
      refuse(fmt::format("token '{}' again", line.substr(0, space)), "every token once");
    tokens.push_back(*bytes);
  }
  if (tokens.empty())
    throw ConfigError(Problem{file, "", "no ranks", "a token and its rank on every line", ""});
  if (tokens.size() > kFewRanks && tokens.size() != kLlama3Ranks)
    throw ConfigError(Problem{
        file, "", fmt::format("{} ranks", tokens.size()),
        fmt::format("the {} of Llama 3, whose pattern and special tokens are known", kLlama3Ranks),
        "other ranks (Qwen 1, Llama 4, Kimi, tiktoken's own) are split by patterns that stand in the code "
        "beside them: name the model's tokenizer.json"});
  return read;
}

// Each way to make a token of two.
std::vector<PairMerge> merges_of(const TiktokenRanks& of) {
  std::vector<PairMerge> merges;
  for (std::size_t id = 0; id < of.tokens.size(); ++id) {
    const std::string& token = of.tokens[id];
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = of.ranks.find(token.substr(0, cut)), right = of.ranks.find(token.substr(cut));
      const auto rank = static_cast<std::int32_t>(id);
      if (left != of.ranks.end() && right != of.ranks.end())
        merges.push_back({left->second, right->second, rank, rank});
    }
  }
  return merges;
}

}  // namespace

Tokenizer parse_tiktoken_ranks(std::string_view text, const std::string& file) {
  TiktokenRanks read = read_ranks(text, file);
  std::vector<std::string>& tokens = read.tokens;
  std::vector<PairMerge> merges = merges_of(read);
  const auto ordinary = static_cast<std::int32_t>(tokens.size());
  TokenizerInfo info{.kind = TokenizerKind::tiktoken, .vocab_size = ordinary + kReserved};
  info.bos = ordinary;
  info.eos = ordinary + 1;
  info.source = file;
  SplitPattern split(kLlama3Split, file, "pattern");
  TextPipeline parts;
  parts.cut = CutRule::between_lines;
  parts.pre_tokenizer.add(split_step(std::move(split), SplitBehavior::isolated, false));
  BytePairModel model{.bytes = tokens_of_bytes(tokens, file), .merges = std::move(merges), .whole = {}};
  for (std::size_t id = 0; id < tokens.size(); ++id)
    model.whole.emplace(tokens[id], static_cast<std::int32_t>(id));
  parts.model = byte_pair_encoder(std::move(model));
  parts.bad_bytes = parts.model;
  parts.decode = decode_texts(std::move(tokens), false);
  return make_tokenizer(std::move(info), std::move(parts));
}

std::vector<std::int32_t> tokens_of_bytes(const std::vector<std::string>& tokens, const std::string& file) {
  std::vector<std::int32_t> bytes(256, -1);
  for (std::size_t id = 0; id < tokens.size(); ++id)
    if (tokens[id].size() == 1)
      bytes[static_cast<unsigned char>(tokens[id][0])] = static_cast<std::int32_t>(id);
  for (std::size_t c = 0; c < bytes.size(); ++c)
    if (bytes[c] < 0)
      throw ConfigError(Problem{file, "", fmt::format("no token for byte 0x{:02x}", c),
                                "a token for each of the 256 bytes",
                                "byte-level BPE, as of Llama 3, can write any text"});
  return bytes;
}

}  // namespace sextant
