// What a data set says of itself, index.json: the tokenizer, and for each split the shards with their digests. A shard is
// NAME.tokens, ids one behind the other in little-endian words of token_bytes, NAME.documents, for each document the token
// behind its last (64 bits), and NAME.blocks, digests of their blocks. Documents do not reach over shards. docs/data.md describes the files.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/error.hpp"

namespace sextant {

enum class DataSplit : std::uint8_t { train, validation };
inline constexpr std::array<std::string_view, 2> kDataSplitNames = {"train", "validation"};

// Of a tokenizer, where a data set keeps them.
inline constexpr std::array<std::string_view, 2> kTokenizerFiles = {"tokenizer.json", "tokenizer.model"};
inline constexpr const char* kTokenizerConfig = "tokenizer_config.json";
inline constexpr const char* kDataIndexFile = "index.json";

struct DataShard {
  std::string name;  // "train-00000"
  std::int64_t tokens = 0, documents = 0;
  std::string tokens_digest, documents_digest;  // XXH3-128 of the files
  std::string blocks_digest = {};  // of NAME.blocks (block_digests.hpp); empty: none, as of schemas 1 and 2
  bool operator==(const DataShard&) const = default;
};

struct DataTokenizer {
  std::string kind, source, digest;
  std::string file = {};  // its copy in the data set's folder; empty: none, as of bytes and of schema 1
  int vocab_size = 0;
  std::optional<std::int32_t> bos = {}, eos = {};
  bool operator==(const DataTokenizer&) const = default;
};

struct DataIndex {
  std::string schema = kSchema;
  DataTokenizer tokenizer = {};
  int token_bytes = 2;
  std::int64_t seed = 0;
  double validation_fraction = 0;
  std::vector<DataShard> train = {}, validation = {};

  static constexpr const char* kSchema = "sextant.data/3";
  static constexpr const char* kSchemaWithoutBlocks = "sextant.data/2";
  static constexpr const char* kSchemaWithoutDigest = "sextant.data/1";
  const std::vector<DataShard>& shards(DataSplit s) const {
    return s == DataSplit::train ? train : validation;
  }
  std::int64_t tokens(DataSplit) const;
  std::int64_t documents(DataSplit) const;
  // Of tokenizer and shards: equal digests, equal tokens in equal order.
  std::string digest() const;
  bool operator==(const DataIndex&) const = default;
};
void to_json(nlohmann::json&, const DataShard&);
void from_json(const nlohmann::json&, DataShard&);
void to_json(nlohmann::json&, const DataTokenizer&);
void from_json(const nlohmann::json&, DataTokenizer&);
void to_json(nlohmann::json&, const DataIndex&);
void from_json(const nlohmann::json&, DataIndex&);  // throws ConfigError
std::vector<Problem> validate(const DataIndex&);

// The file: with `made_from`, an object for people, and a digest of all of it, which reading compares. Schema 1 had none. Throws
// ConfigError.
std::string data_index_text(const DataIndex&, const nlohmann::json& made_from);
DataIndex read_data_index(const std::filesystem::path&);

inline constexpr int token_bytes_of(int vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

}  // namespace sextant
