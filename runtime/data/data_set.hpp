// A data set on disk, read through memory maps: each split is one row of tokens, document behind document.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/data/block_digests.hpp"
#include "runtime/data/data_index.hpp"
#include "runtime/data/mapped_file.hpp"

namespace sextant {

// The tokens of a split. Reading is safe from several threads at once.
class TokenRow {
 public:
  TokenRow() = default;
  TokenRow(const std::filesystem::path& folder, const std::vector<DataShard>&, int token_bytes,
           int vocab_size);

  std::int64_t tokens() const { return begins_.back(); }
  // Tokens [first, first + out.size()). Throws ConfigError on a token beyond the vocabulary and on bytes that are compared and
  // are others.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  // Calls with the place of each document's first token in [first, last), in order. Throws as read() and as below.
  void documents_begun_in(std::int64_t first, std::int64_t last,
                          const std::function<void(std::int64_t begin)>&) const;
  // Calls with the place of every document's first token and the one behind its last, in order. Throws ConfigError when
  // the ends do not ascend.
  void for_each_document(const std::function<void(std::int64_t begin, std::int64_t end)>&) const;
  // From now on compares what is read, block by block when it is first touched; false when a shard has no digests of its blocks.
  bool compare_what_is_read();
  // Compares every byte with the index.
  void verify(const std::function<void(std::int64_t bytes)>& progress = {}) const;

 private:
  struct Shard {
    DataShard about;
    MappedFile tokens, documents;
    std::filesystem::path path;              // without the suffix
    std::unique_ptr<BlockCheck> check = {};  // of what is read
    void touch_tokens(std::int64_t first, std::size_t count, int token_bytes) const;
    std::uint64_t end_of(std::int64_t document) const;
    std::unique_ptr<BlockCheck> check_of_blocks() const;  // none without digests of its blocks
  };
  std::size_t shard_of(std::int64_t token) const;
  [[noreturn]] void refuse_document(const Shard&, std::int64_t document, std::uint64_t before) const;

  std::vector<Shard> shards_;
  std::vector<std::int64_t> begins_ = {0};  // of the shards, and the end
  int token_bytes_ = 2, vocab_size_ = 0;
};

class DataSet {
 public:
  static constexpr std::int64_t kVerifiedOnOpening = 256LL << 20;  // bytes: a tenth of a second

  // Opens all shards and compares their sizes with the index; sets of up to `verified_on_opening` bytes are verified whole,
  // larger ones as they are read. Throws ConfigError with file, key and expectation.
  explicit DataSet(std::filesystem::path folder, std::int64_t verified_on_opening = kVerifiedOnOpening);

  const std::filesystem::path& folder() const { return folder_; }
  const DataIndex& index() const { return index_; }
  const TokenRow& row(DataSplit s) const { return s == DataSplit::train ? train_ : validation_; }
  std::int64_t bytes() const;
  // Every byte was compared, or will be before it is used; false for large sets without digests of blocks (schemas 1 and 2).
  bool verified() const { return verified_; }

 private:
  std::filesystem::path folder_;
  DataIndex index_;
  TokenRow train_, validation_;
  bool verified_ = true;
};

}  // namespace sextant
