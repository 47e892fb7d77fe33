#include "runtime/data/mapped_file.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.hpp"

namespace sextant {

MappedFile::MappedFile(const std::filesystem::path& path, std::size_t expected_bytes) {
  const auto refuse = [&](std::string found, std::string expected, std::string hint) {
    throw ConfigError(Problem{path.string(), "", std::move(found), std::move(expected), std::move(hint)});
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    refuse(errno == ENOENT ? "no such file" : std::strerror(errno), "a file of tokens that can be read", "");
  struct stat status {};
  const bool known = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<std::size_t>(known ? status.st_size : 0);
  if (known && size == expected_bytes && size > 0) range_ = MappedRange(fd, size, path);
  const int error = errno;
  ::close(fd);
  if (!known) refuse("no regular file", "a file of tokens", "");
  if (size != expected_bytes)
    refuse(fmt::format("{} bytes", size), fmt::format("{} bytes, as the index states", expected_bytes),
           size < expected_bytes ? "it was cut, or belongs to another index" : "it belongs to another index");
  if (size > 0 && !range_) refuse(std::strerror(error), "a file that can be mapped", "");
}

}  // namespace sextant
