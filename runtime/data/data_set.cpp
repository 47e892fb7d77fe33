#include "runtime/data/data_set.hpp"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "core/base/digest.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little,
              "tokens are stored little-endian and read as they are");

constexpr std::size_t kReadBlock = 4U << 20;

fs::path with_suffix(const fs::path& path, const char* suffix) { return path.string() + suffix; }

DataIndex read_index(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw ConfigError(Problem{folder.string(), "",
                              fs::exists(folder, error) ? "a file"
                              : error                   ? error.message()
                                                        : "no such folder",
                              "a data set: a folder made by 'sextant data'", ""});
  if (!fs::exists(folder / kDataIndexFile, error) && !error)
    throw ConfigError(
        Problem{folder.string(), "", "no index.json in it", "a data set: a folder made by 'sextant data'",
                folder.extension() == ".partial" ? "it is not finished: give the same command again" : ""});
  return read_data_index(folder / kDataIndexFile);
}

void compare(const fs::path& path, const MappedFile& file, const std::string& expected,
             const std::function<void(std::int64_t)>& progress) {
  Digest digest;
  for (std::size_t at = 0; at < file.bytes().size(); at += kReadBlock) {
    const auto block = file.bytes().subspan(at, std::min(kReadBlock, file.bytes().size() - at));
    digest.add(block);
    if (progress) progress(static_cast<std::int64_t>(block.size()));
  }
  if (digest.text() != expected)
    throw ConfigError(Problem{path.string(), "", fmt::format("digest {}", digest.text()),
                              fmt::format("{}, as the index states", expected),
                              "the file was changed, or is damaged"});
}

}  // namespace

TokenRow::TokenRow(const fs::path& folder, const std::vector<DataShard>& shards, int token_bytes,
                   int vocab_size)
    : token_bytes_(token_bytes), vocab_size_(vocab_size) {
  for (const DataShard& s : shards) {
    const fs::path path = folder / s.name;
    MappedFile tokens(with_suffix(path, ".tokens"), static_cast<std::size_t>(s.tokens * token_bytes));
    MappedFile documents(with_suffix(path, ".documents"),
                         static_cast<std::size_t>(s.documents) * sizeof(std::uint64_t));
    if (const auto last = documents.as<std::uint64_t>()[s.documents - 1];
        last != static_cast<std::uint64_t>(s.tokens))
      throw ConfigError(Problem{with_suffix(path, ".documents").string(), "",
                                fmt::format("the last document ends at token {}", last),
                                fmt::format("at {}, as the index states", s.tokens),
                                "it belongs to another shard"});
    shards_.push_back({s, std::move(tokens), std::move(documents), path});
    begins_.push_back(begins_.back() + s.tokens);
  }
}

bool TokenRow::compare_what_is_read() {
  for (Shard& s : shards_) s.check = s.check_of_blocks();
  return std::ranges::all_of(shards_, [](const Shard& s) { return s.check != nullptr; });
}

std::unique_ptr<BlockCheck> TokenRow::Shard::check_of_blocks() const {
  if (about.blocks_digest.empty()) return {};
  return std::make_unique<BlockCheck>(
      with_suffix(path, ".blocks"), about.blocks_digest,
      std::array{BlockCheck::File{with_suffix(path, ".tokens"), tokens.bytes()},
                 BlockCheck::File{with_suffix(path, ".documents"), documents.bytes()}});
}

void TokenRow::Shard::touch_tokens(std::int64_t first, std::size_t count, int token_bytes) const {
  const auto bytes = static_cast<std::size_t>(token_bytes);
  if (check) check->touch(0, static_cast<std::size_t>(first) * bytes, count * bytes);
}

std::uint64_t TokenRow::Shard::end_of(std::int64_t document) const {
  if (check)
    check->touch(1, static_cast<std::size_t>(document) * sizeof(std::uint64_t), sizeof(std::uint64_t));
  return documents.as<std::uint64_t>()[document];
}

std::size_t TokenRow::shard_of(std::int64_t token) const {
  return static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), token) - begins_.begin()) -
         1;
}

void TokenRow::read(std::int64_t first, std::span<std::int32_t> out) const {
  SEXTANT_CHECK(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= tokens(),
                "tokens beyond the data set");
  for (std::size_t shard = shard_of(first); !out.empty(); ++shard) {
    const std::int64_t from = first - begins_[shard];
    const std::size_t n = std::min(out.size(), static_cast<std::size_t>(begins_[shard + 1] - first));
    shards_[shard].touch_tokens(from, n, token_bytes_);
    std::int32_t highest = 0, lowest = 0;
    const auto copy = [&]<class Word>(const Word* words) {
      for (std::size_t i = 0; i < n; ++i) {
        out[i] = static_cast<std::int32_t>(words[from + static_cast<std::int64_t>(i)]);
        highest = std::max(highest, out[i]);
        lowest = std::min(lowest, out[i]);
      }
    };
    if (token_bytes_ == 2)
      copy(shards_[shard].tokens.as<std::uint16_t>());
    else
      copy(shards_[shard].tokens.as<std::uint32_t>());
    if (highest >= vocab_size_ || lowest < 0)
      throw ConfigError(
          Problem{with_suffix(shards_[shard].path, ".tokens").string(),
                  fmt::format("tokens {} to {}", from, from + static_cast<std::int64_t>(n)),
                  fmt::format("token {}", lowest < 0 ? lowest : highest),
                  fmt::format("a token below the vocabulary of {}", vocab_size_),
                  "the file is damaged, or belongs to another index: sextant data --check DIR"});
    out = out.subspan(n);
    first += static_cast<std::int64_t>(n);
  }
}

void TokenRow::refuse_document(const Shard& s, std::int64_t document, std::uint64_t before) const {
  throw ConfigError(Problem{with_suffix(s.path, ".documents").string(), fmt::format("document {}", document),
                            fmt::format("end {}", s.documents.as<std::uint64_t>()[document]),
                            fmt::format("above {} and at most {}", before, s.about.tokens),
                            "the file is damaged, or belongs to another index: sextant data --check DIR"});
}

void TokenRow::documents_begun_in(std::int64_t first, std::int64_t last,
                                  const std::function<void(std::int64_t)>& use) const {
  for (std::size_t shard = shard_of(first); shard < shards_.size() && begins_[shard] < last; ++shard) {
    const Shard& s = shards_[shard];
    if (first <= begins_[shard]) use(begins_[shard]);
    const auto from = static_cast<std::uint64_t>(std::max<std::int64_t>(first - begins_[shard], 1));
    // The last document's end begins none.
    std::int64_t at = 0;
    for (std::int64_t left = s.about.documents - 1; left > 0;) {
      const std::int64_t half = left / 2;
      const bool behind = s.end_of(at + half) < from;
      if (behind) at += half + 1;
      left = behind ? left - half - 1 : half;
    }
    std::uint64_t before = from - 1;
    for (; at < s.about.documents - 1; ++at) {
      const std::uint64_t end = s.end_of(at);
      if (end <= before || end > static_cast<std::uint64_t>(s.about.tokens)) refuse_document(s, at, before);
      const std::int64_t begin = begins_[shard] + static_cast<std::int64_t>(end);
      if (begin >= last) break;
      use(begin);
      before = end;
    }
  }
}

void TokenRow::for_each_document(const std::function<void(std::int64_t, std::int64_t)>& use) const {
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    const auto tokens = static_cast<std::uint64_t>(shards_[shard].about.tokens);
    std::uint64_t begin = 0;
    for (std::int64_t d = 0; d < shards_[shard].about.documents; ++d) {
      const std::uint64_t end = shards_[shard].end_of(d);
      if (end <= begin || end > tokens) refuse_document(shards_[shard], d, begin);
      use(begins_[shard] + static_cast<std::int64_t>(begin), begins_[shard] + static_cast<std::int64_t>(end));
      begin = end;
    }
  }
}

void TokenRow::verify(const std::function<void(std::int64_t)>& progress) const {
  for (const Shard& s : shards_) {
    compare(with_suffix(s.path, ".tokens"), s.tokens, s.about.tokens_digest, progress);
    compare(with_suffix(s.path, ".documents"), s.documents, s.about.documents_digest, progress);
    if (const auto blocks = s.check_of_blocks()) blocks->read_lines();
  }
}

DataSet::DataSet(fs::path folder, std::int64_t verified_on_opening)
    : folder_(std::move(folder)),
      index_(read_index(folder_)),
      train_(folder_, index_.train, index_.token_bytes, index_.tokenizer.vocab_size),
      validation_(folder_, index_.validation, index_.token_bytes, index_.tokenizer.vocab_size) {
  if (bytes() <= verified_on_opening) {
    train_.verify();
    validation_.verify();
  } else {
    const bool train = train_.compare_what_is_read(), validation = validation_.compare_what_is_read();
    verified_ = train && validation;
  }
}

std::int64_t DataSet::bytes() const {
  std::int64_t all = 0;
  for (const DataSplit s : {DataSplit::train, DataSplit::validation})
    all += index_.tokens(s) * index_.token_bytes + index_.documents(s) * std::int64_t{sizeof(std::uint64_t)};
  return all;
}

}  // namespace sextant
