// Digests of the blocks of a shard's files, in a file of their own: NAME.blocks has a line of 32 digits for each block of
// NAME.tokens, then for each of NAME.documents. So a run compares what it reads when it first reads it, however large the set.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.hpp"

namespace sextant {

inline constexpr std::size_t kDigestBlock = 256U << 10;  // bytes; the last of a file may have fewer

// The lines of one file, as its bytes come.
class BlockDigests {
 public:
  void add(std::string_view bytes);
  std::string text() const;  // of everything so far

 private:
  std::string lines_;
  Digest open_;
  std::size_t in_open_ = 0;
};

class BlockCheck {
 public:
  struct File {
    std::filesystem::path path;
    std::span<const std::byte> bytes;
  };
  // `blocks` is the file of the lines, which has this digest.
  BlockCheck(std::filesystem::path blocks, std::string digest, std::array<File, 2> files);

  // Compares every block that bytes [first, first + size) of the file have a part in, and that has not been before. Safe
  // from several threads at once. Throws ConfigError with file, block and digests.
  void touch(std::size_t file, std::size_t first, std::size_t size);
  // Reads the lines, which touching does when it first needs them. Throws ConfigError when they are others.
  void read_lines();

 private:
  std::filesystem::path blocks_;
  std::string digest_, lines_;
  std::array<File, 2> files_;
  std::once_flag read_;
  std::vector<std::atomic<bool>> seen_;
};

}  // namespace sextant
