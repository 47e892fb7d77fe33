#include "runtime/data/data_index.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/digest.hpp"
#include "core/base/json_digest.hpp"
#include "core/base/json_io.hpp"

namespace sextant {
namespace {

constexpr double kMostTokens = 1e15;
constexpr const char* kDigestKey = "index_digest";  // of all other fields

constexpr auto kShardFields = [](auto& io, auto& s) {
  io.required("name", s.name);
  io.required("tokens", s.tokens, between(1, kMostTokens));
  io.required("documents", s.documents, between(1, kMostTokens));
  io.required("tokens_digest", s.tokens_digest);
  io.required("documents_digest", s.documents_digest);
  io.optional("blocks_digest", s.blocks_digest);
};
constexpr auto kTokenizerFields = [](auto& io, auto& t) {
  io.required("kind", t.kind);
  io.required("source", t.source);
  io.required("digest", t.digest);
  io.required("vocab_size", t.vocab_size, between(1, 1 << 30));
  io.optional("file", t.file);
  io.optional("bos", t.bos, at_least(0));
  io.optional("eos", t.eos, at_least(0));
};
constexpr auto kIndexFields = [](auto& io, auto& d) {
  io.required("schema", d.schema);
  io.required("tokenizer", d.tokenizer);
  io.required("token_bytes", d.token_bytes, between(2, 4));
  io.required("seed", d.seed);
  io.required("validation_fraction", d.validation_fraction, between(0, 1));
  io.required("train", d.train);
  io.required("validation", d.validation);
  io.ignored("made_from");
  io.ignored(kDigestKey);
};

bool plain_name(const std::string& name) {
  return !name.empty() && name.size() < 100 &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") ==
             name.npos;
}

std::int64_t sum(const std::vector<DataShard>& shards, std::int64_t DataShard::*field) {
  return std::accumulate(shards.begin(), shards.end(), std::int64_t{0},
                         [&](std::int64_t n, const DataShard& s) { return n + s.*field; });
}

}  // namespace

std::int64_t DataIndex::tokens(DataSplit s) const { return sum(shards(s), &DataShard::tokens); }
std::int64_t DataIndex::documents(DataSplit s) const { return sum(shards(s), &DataShard::documents); }

std::string DataIndex::digest() const {
  Digest all;
  all.add(fmt::format("{} {}\n", tokenizer.digest, token_bytes));
  for (const auto* split : {&train, &validation})
    for (const DataShard& s : *split)
      all.add(fmt::format("{} {} {} {} {}\n", split == &train, s.tokens, s.documents, s.tokens_digest,
                          s.documents_digest));
  return all.text();
}

std::vector<Problem> validate(const DataIndex& index) {
  std::vector<Problem> problems;
  if (index.schema != DataIndex::kSchema && index.schema != DataIndex::kSchemaWithoutBlocks &&
      index.schema != DataIndex::kSchemaWithoutDigest)
    problems.push_back({"", "schema", index.schema, DataIndex::kSchema, "is this the index of a data set?"});
  if (index.token_bytes != token_bytes_of(index.tokenizer.vocab_size))
    problems.push_back({"", "token_bytes", std::to_string(index.token_bytes),
                        fmt::format("{}, for a vocabulary of {}", token_bytes_of(index.tokenizer.vocab_size),
                                    index.tokenizer.vocab_size),
                        ""});
  if (const std::string& file = index.tokenizer.file;
      !file.empty() && std::ranges::find(kTokenizerFiles, file) == kTokenizerFiles.end())
    problems.push_back(
        {"", "tokenizer.file", file, fmt::format("{}", fmt::join(kTokenizerFiles, " or ")), ""});
  std::set<std::string> names;
  for (const auto* split : {&index.train, &index.validation})
    for (std::size_t i = 0; i < split->size(); ++i) {
      const DataShard& s = (*split)[i];
      const std::string path = fmt::format("{}[{}]", kDataSplitNames[split == &index.train ? 0 : 1], i);
      if (!plain_name(s.name)) problems.push_back({"", path + ".name", s.name, "a plain file name", ""});
      if (!names.insert(s.name).second)
        problems.push_back({"", path + ".name", s.name, "a name of its own", ""});
      if (s.documents > s.tokens)
        problems.push_back({"", path + ".documents", std::to_string(s.documents),
                            fmt::format("at most {} tokens", s.tokens), ""});
    }
  return problems;
}

std::string data_index_text(const DataIndex& index, const nlohmann::json& made_from) {
  nlohmann::json j = index;
  j["made_from"] = made_from;
  j[kDigestKey] = digest_without(j, {kDigestKey});
  return j.dump(2) + "\n";
}

DataIndex read_data_index(const std::filesystem::path& path) {
  DataIndex index;
  with_json_file(path, [&](const nlohmann::json& j) {
    index = j.get<DataIndex>();
    const auto stated = j.find(kDigestKey);
    if (stated == j.end() && index.schema == DataIndex::kSchemaWithoutDigest) return;
    if (stated == j.end() || *stated != digest_without(j, {kDigestKey}))
      throw ConfigError(Problem{"", kDigestKey, stated == j.end() ? "none" : "that of other contents",
                                "that of this file", "it was changed, or is damaged"});
  });
  return index;
}

void to_json(nlohmann::json& j, const DataShard& s) { write_object(j, s, kShardFields); }
void from_json(const nlohmann::json& j, DataShard& s) { read_object(j, s, kShardFields); }
void to_json(nlohmann::json& j, const DataTokenizer& t) { write_object(j, t, kTokenizerFields); }
void from_json(const nlohmann::json& j, DataTokenizer& t) { read_object(j, t, kTokenizerFields); }
void to_json(nlohmann::json& j, const DataIndex& d) { write_object(j, d, kIndexFields); }
void from_json(const nlohmann::json& j, DataIndex& d) { read_object(j, d, kIndexFields); }

}  // namespace sextant
