// Files as a whole: read with a size limit, and written so that nobody ever sees half of one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace sextant {

inline constexpr std::uintmax_t kMaxInputBytes = 64ULL << 20;

// The whole file. Throws ConfigError when it is missing, a directory, a named pipe (it might wait for ever), unreadable,
// or larger than `limit` (a regular file is then not read at all; a pipe that a shell made only up to the limit).
std::string read_text_file(const std::filesystem::path&, std::uintmax_t limit = kMaxInputBytes);

// Throws what write_file_atomic would throw for a path that cannot be written at all: to be told before long
// work, not after it.
void check_writable(const std::filesystem::path&);

// Writes a temporary file beside `path`, flushes it to the disk and renames it over `path`: afterwards `path`
// is either as it was before or complete. A device or pipe (/dev/stdout) is written directly. Throws
// ConfigError when the path cannot be written at all (also a pipe without a reader), BackendError when writing
// fails (full disk).
void write_file_atomic(const std::filesystem::path&, std::string_view content);

}  // namespace sextant
