// Text files as they lie on disks, packed with gzip or not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/file_io.hpp"

namespace sextant {

// Text that gzip packed (several members too), unpacked; other text as it is. Throws ConfigError, naming `file`, where it is damaged or
// ends early, where more than `limit` bytes come out, and where another program packed it (zstd, xz, bzip2, zip).
std::string unpacked(std::string text, const std::string& file, std::uintmax_t limit = kMaxInputBytes);

// read_text_file (core/base/file_io.hpp), unpacked.
std::string read_packed_text(const std::filesystem::path&, std::uintmax_t limit = kMaxInputBytes);

}  // namespace sextant
