#include "runtime/data/block_digests.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"

namespace sextant {
namespace {

constexpr std::size_t kLine = 33;  // bytes
constexpr const char* kRestore = "put the file of this set back, or make the set again: sextant data";

std::size_t blocks_of(std::size_t bytes) { return (bytes + kDigestBlock - 1) / kDigestBlock; }

}  // namespace

void BlockDigests::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, kDigestBlock - in_open_);
    open_.add(part);
    bytes.remove_prefix(part.size());
    in_open_ += part.size();
    if (in_open_ < kDigestBlock) continue;
    lines_ += open_.text() + '\n';
    open_ = {};
    in_open_ = 0;
  }
}

std::string BlockDigests::text() const { return in_open_ == 0 ? lines_ : lines_ + open_.text() + '\n'; }

BlockCheck::BlockCheck(std::filesystem::path blocks, std::string digest, std::array<File, 2> files)
    : blocks_(std::move(blocks)),
      digest_(std::move(digest)),
      files_(std::move(files)),
      seen_(blocks_of(files_[0].bytes.size()) + blocks_of(files_[1].bytes.size())) {}

void BlockCheck::read_lines() {
  std::string text = read_text_file(blocks_, std::max(kMaxInputBytes, std::uintmax_t{seen_.size() * kLine}));
  if (const std::string found = digest(text); found != digest_)
    throw ConfigError(Problem{blocks_.string(), "", fmt::format("digest {}", found),
                              fmt::format("{}, as the index states", digest_), kRestore});
  if (text.size() != seen_.size() * kLine)
    throw ConfigError(Problem{blocks_.string(), "", fmt::format("{} bytes", text.size()),
                              fmt::format("{} lines of 32 digits", seen_.size()), kRestore});
  lines_ = std::move(text);
}

void BlockCheck::touch(std::size_t file, std::size_t first, std::size_t size) {
  const auto& [path, bytes] = files_[file];
  const std::size_t before = file == 0 ? 0 : blocks_of(files_[0].bytes.size());
  for (std::size_t block = first / kDigestBlock; block * kDigestBlock < first + size; ++block) {
    std::atomic<bool>& seen = seen_[before + block];
    if (seen.load(std::memory_order_relaxed)) continue;
    std::call_once(read_, [&] { read_lines(); });
    const std::size_t begin = block * kDigestBlock, end = std::min(begin + kDigestBlock, bytes.size());
    const std::string found = digest(bytes.subspan(begin, end - begin));
    const std::string expected = lines_.substr((before + block) * kLine, kLine - 1);
    if (found != expected)
      throw ConfigError(
          Problem{path.string(), fmt::format("bytes {} to {}", begin, end), fmt::format("digest {}", found),
                  fmt::format("{}, as line {} of {} states", expected, before + block + 1,
                              blocks_.filename().string()),
                  fmt::format("the file was changed, is damaged, or is of another set: {}", kRestore)});
    seen.store(true, std::memory_order_relaxed);
  }
}

}  // namespace sextant
