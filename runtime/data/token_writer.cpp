#include "runtime/data/token_writer.hpp"

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/digest.hpp"
#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "runtime/data/block_digests.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBuffer = 1U << 20;

constexpr auto kProgressFields = [](auto& io, auto& p) {
  io.required("closed", p.closed);
  io.required("tokens", p.tokens, at_least(0));
  io.required("documents", p.documents, at_least(0));
  io.optional("tokens_digest", p.tokens_digest);
  io.optional("documents_digest", p.documents_digest);
};

// A growing file and the digests of what it holds.
class OutputFile {
 public:
  // Keeps the first `keep` bytes of what is there, which have this digest unless it is empty.
  OutputFile(fs::path path, std::int64_t keep, const std::string& kept_digest) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ < 0) failed();
    std::string block(kBuffer, '\0');
    for (std::int64_t left = keep; left > 0;) {
      const ssize_t n =
          ::read(fd_, block.data(), static_cast<std::size_t>(std::min<std::int64_t>(left, kBuffer)));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) failed();
      if (n == 0)
        throw ConfigError(Problem{path_.string(), "", fmt::format("{} bytes", keep - left),
                                  fmt::format("at least {}", keep), ""});
      count(std::string_view(block).substr(0, static_cast<std::size_t>(n)));
      left -= n;
    }
    if (const std::string found = digest(); !kept_digest.empty() && found != kept_digest)
      throw ConfigError(Problem{path_.string(), fmt::format("the first {} bytes", keep),
                                fmt::format("digest {}", found), kept_digest, ""});
    if (::ftruncate(fd_, keep) != 0 || ::lseek(fd_, keep, SEEK_SET) != keep) failed();
  }
  ~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  template <class Word>
  void put(Word word) {
    buffer_.append(reinterpret_cast<const char*>(&word), sizeof word);
    if (buffer_.size() >= kBuffer) write();
  }
  void sync() {
    write();
    if (::fsync(fd_) != 0) failed();
  }
  std::string digest() const { return digest_.text(); }
  std::string blocks() const { return blocks_.text(); }

 private:
  void count(std::string_view bytes) {
    digest_.add(bytes);
    blocks_.add(bytes);
  }
  void write() {
    count(buffer_);
    for (std::string_view left = buffer_; !left.empty();) {
      const ssize_t n = ::write(fd_, left.data(), left.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) failed();
      left.remove_prefix(static_cast<std::size_t>(n));
    }
    buffer_.clear();
  }
  [[noreturn]] void failed() {
    throw BackendError(fmt::format("{}: writing failed: {}", path_.string(), std::strerror(errno)));
  }

  fs::path path_;
  int fd_ = -1;
  std::string buffer_;
  Digest digest_;
  BlockDigests blocks_;
};

}  // namespace

std::string shard_name(std::string_view split, std::size_t number) {
  return fmt::format("{}-{:05}", split, number);
}

void to_json(nlohmann::json& j, const SplitProgress& p) { write_object(j, p, kProgressFields); }
void from_json(const nlohmann::json& j, SplitProgress& p) { read_object(j, p, kProgressFields); }

class TokenWriter::Shards {
 public:
  Shards(fs::path folder, std::string_view split, int token_bytes, std::int64_t shard_tokens,
         SplitProgress from)
      : folder_(std::move(folder)),
        split_(split),
        token_bytes_(token_bytes),
        shard_tokens_(shard_tokens),
        progress_(std::move(from)) {
    if (progress_.tokens > 0) open();
  }

  void add(std::span<const std::int32_t> ids) {
    if (!tokens_) open();
    for (const std::int32_t id : ids) {
      if (token_bytes_ == 2)
        tokens_->put(static_cast<std::uint16_t>(id));
      else
        tokens_->put(static_cast<std::uint32_t>(id));
    }
    progress_.tokens += static_cast<std::int64_t>(ids.size());
  }
  void end_document() {
    documents_->put(static_cast<std::uint64_t>(progress_.tokens));
    ++progress_.documents;
    if (progress_.tokens >= shard_tokens_) close();
  }
  SplitProgress flush() {
    if (!tokens_) return progress_;
    tokens_->sync();
    documents_->sync();
    progress_.tokens_digest = tokens_->digest();
    progress_.documents_digest = documents_->digest();
    return progress_;
  }
  SplitProgress finish() {
    if (tokens_) close();
    return progress_;
  }

 private:
  void open() {
    const std::string path = (folder_ / shard_name(split_, progress_.closed.size())).string();
    tokens_.emplace(path + ".tokens", progress_.tokens * token_bytes_, progress_.tokens_digest);
    documents_.emplace(path + ".documents", progress_.documents * std::int64_t{sizeof(std::uint64_t)},
                       progress_.documents_digest);
  }
  void close() {
    flush();
    DataShard shard;
    shard.name = shard_name(split_, progress_.closed.size());
    shard.tokens = progress_.tokens;
    shard.documents = progress_.documents;
    shard.tokens_digest = std::exchange(progress_.tokens_digest, {});
    shard.documents_digest = std::exchange(progress_.documents_digest, {});
    const std::string blocks = tokens_->blocks() + documents_->blocks();
    write_file_atomic(folder_ / (shard.name + ".blocks"), blocks);
    shard.blocks_digest = digest(blocks);
    progress_.closed.push_back(std::move(shard));
    progress_.tokens = progress_.documents = 0;
    tokens_.reset();
    documents_.reset();
  }

  fs::path folder_;
  std::string split_;
  int token_bytes_;
  std::int64_t shard_tokens_;
  SplitProgress progress_;
  std::optional<OutputFile> tokens_, documents_;
};

TokenWriter::TokenWriter(const fs::path& folder, int token_bytes, std::int64_t shard_tokens,
                         const WriterProgress& from) {
  for (std::size_t s = 0; s < splits_.size(); ++s)
    splits_[s] = std::make_unique<Shards>(folder, kDataSplitNames[s], token_bytes, shard_tokens, from[s]);
}
TokenWriter::~TokenWriter() = default;

void TokenWriter::add(DataSplit s, std::span<const std::int32_t> ids) {
  splits_[static_cast<std::size_t>(s)]->add(ids);
}
void TokenWriter::end_document(DataSplit s) { splits_[static_cast<std::size_t>(s)]->end_document(); }
WriterProgress TokenWriter::flush() { return {splits_[0]->flush(), splits_[1]->flush()}; }
WriterProgress TokenWriter::finish() { return {splits_[0]->finish(), splits_[1]->finish()}; }

}  // namespace sextant
