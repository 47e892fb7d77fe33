// What the targets have in common: bad input is refused with ConfigError alone, and files that lie in memory.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "core/base/json_io.hpp"

namespace sextant::fuzz {

// True when `read` accepts; bad input is refused with ConfigError and nothing else.
template <class Read>
bool accepts(Read read) {
  try {
    read();
    return true;
  } catch (const ConfigError& e) {
    SEXTANT_CHECK(!e.problems().empty() && e.what()[0] != '\0', "an error without words");
    return false;
  }
}

// Written and read again, a value is the same.
template <class T>
void check_round_trip(const T& value) {
  SEXTANT_CHECK(parse_json(nlohmann::json(value).dump(), "again").get<T>() == value, "JSON round trip");
}

// JSON as a T: nothing where it is refused; what is accepted is lawful, and the same when it is written and read again.
template <class T>
std::optional<T> lawful_json(std::string_view text) {
  T value;
  if (!accepts([&] { value = parse_json(text, "fuzz").get<T>(); })) return std::nullopt;
  SEXTANT_CHECK(validate(value).empty(), "what is unlawful was accepted");
  check_round_trip(value);
  return value;
}

// A file in memory, for parsers that read files.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    SEXTANT_CHECK(fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
                  "a file in memory");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace sextant::fuzz
