// Writes the shards of a data set as documents arrive, and knows how far they have come, so that another writer can go on
// from there after a kill.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/data_index.hpp"

namespace sextant {

// Of one split: closed shards, and how much of the open one counts. What files hold beyond that does not.
struct SplitProgress {
  std::vector<DataShard> closed = {};
  std::int64_t tokens = 0, documents = 0;                 // of the open shard
  std::string tokens_digest = {}, documents_digest = {};  // of so much of its files; empty: not known
  bool operator==(const SplitProgress&) const = default;
};
void to_json(nlohmann::json&, const SplitProgress&);
void from_json(const nlohmann::json&, SplitProgress&);
using WriterProgress = std::array<SplitProgress, 2>;  // by DataSplit

std::string shard_name(std::string_view split, std::size_t number);  // "train-00000"

class TokenWriter {
 public:
  // `shard_tokens`: a shard is closed at the end of the document that reaches it. Throws ConfigError when the files do
  // not hold what `from` says.
  TokenWriter(const std::filesystem::path& folder, int token_bytes, std::int64_t shard_tokens,
              const WriterProgress& from = {});
  ~TokenWriter();

  void add(DataSplit, std::span<const std::int32_t> ids);
  void end_document(DataSplit);  // throws BackendError when the disk refuses, as all of them
  // Everything so far is on the disk when it returns.
  WriterProgress flush();
  // Closes the open shards; the writer is done.
  WriterProgress finish();

 private:
  class Shards;
  std::array<std::unique_ptr<Shards>, 2> splits_;
};

}  // namespace sextant
