#include "core/base/file_io.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "core/base/file_descriptor.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void bad_path(const fs::path& path, std::string expected, std::string hint) {
  throw ConfigError(Problem{path.string(), "", "", std::move(expected), std::move(hint)});
}

// A pipe that a shell made (/dev/stdin, <(command)) has its writer; to open one that lies in a folder waits for a writer
// that may never come.
bool is_named_pipe(const fs::path& path, mode_t mode) {
  constexpr decltype(statfs::f_type) kPipes = 0x50495045;  // PIPEFS_MAGIC of linux/magic.h
  struct statfs system {};
  return S_ISFIFO(mode) && (::statfs(path.c_str(), &system) != 0 || system.f_type != kPipes);
}

std::string mebibytes(std::uintmax_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// A wrong path is the user's to mend; anything else is a failure of the system.
[[noreturn]] void cannot_write(const fs::path& path, int error) {
  std::string why = std::strerror(error);
  std::error_code unknown;
  if (const fs::path folder = path.parent_path();
      error == ENOENT && !folder.empty() && !fs::exists(folder, unknown) && !unknown)
    why += fmt::format(" (there is no folder {})", folder.string());
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EISDIR:
    case EROFS:
    case ENAMETOOLONG:
    case ELOOP:
      bad_path(path, "", fmt::format("cannot be written: {}", why));
    default:
      throw BackendError(fmt::format("{}: writing failed: {}; nothing was left behind", path.string(), why));
  }
}

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    content.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

void write_through(const fs::path& path, std::string_view content) {
  // Opening a pipe would wait for its reader; writing to one that has a reader may wait for it.
  FileDescriptor out(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (out.get() < 0 && errno == ENXIO)
    bad_path(path, "", "is a named pipe or socket that nobody reads, expected a file");
  if (out.get() < 0 || ::fcntl(out.get(), F_SETFL, 0) != 0 || !write_all(out.get(), content) || !out.close())
    cannot_write(path, errno);
}

// The permissions a plain open() would have given.
mode_t default_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

std::string read_text_file(const fs::path& path, std::uintmax_t limit) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    bad_path(path, "", errno == ENOENT ? "no such file" : fmt::format("cannot be read: {}", strerror(errno)));
  if (S_ISDIR(status.st_mode)) bad_path(path, "", "is a directory, expected a file");
  if (is_named_pipe(path, status.st_mode)) bad_path(path, "", "is a named pipe, expected a file");
  if (S_ISSOCK(status.st_mode) || S_ISBLK(status.st_mode)) bad_path(path, "", "is not a file");
  const auto too_large = [&](std::string size) {
    bad_path(path, "", fmt::format("is {}, expected at most {}; it was not read", size, mebibytes(limit)));
  };
  if (S_ISREG(status.st_mode) && static_cast<std::uintmax_t>(status.st_size) > limit)
    too_large(mebibytes(static_cast<std::uintmax_t>(status.st_size)));
  // A device may have no end (a link to /dev/urandom in place of a file): of those nobody needs as much as of a file.
  if (!S_ISREG(status.st_mode)) limit = std::min(limit, kMaxInputBytes);
  FileDescriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (in.get() < 0) bad_path(path, "", fmt::format("cannot be read: {}", std::strerror(errno)));
  std::string text;
  for (std::string block(1 << 16, '\0');;) {
    const ssize_t n = ::read(in.get(), block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) bad_path(path, "", fmt::format("cannot be read: {}", std::strerror(errno)));
    if (n == 0) return text;
    text.append(block, 0, static_cast<std::size_t>(n));
    if (text.size() > limit) too_large("larger");
  }
}

void check_writable(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) cannot_write(path, EISDIR);
    if (::access(path.c_str(), W_OK) != 0) cannot_write(path, errno);
    if (!S_ISREG(status.st_mode)) return;
  } else if (errno != ENOENT) {
    cannot_write(path, errno);
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) cannot_write(path, errno);
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) cannot_write(path, EISDIR);
  // Renaming over a device would replace the device itself.
  if (exists && !S_ISREG(status.st_mode)) return write_through(path, content);
  std::error_code ec;
  const fs::path target = exists ? fs::canonical(path, ec) : path;  // a link keeps pointing to its file
  if (ec) cannot_write(path, ec.value());
  if (exists && ::access(target.c_str(), W_OK) != 0) cannot_write(path, errno);

  std::string temporary = target.string() + ".XXXXXX";
  FileDescriptor out(::mkostemp(temporary.data(), O_CLOEXEC));
  if (out.get() < 0) cannot_write(path, errno);
  const bool written = write_all(out.get(), content) &&
                       ::fchmod(out.get(), exists ? status.st_mode & 07777 : default_mode()) == 0 &&
                       ::fsync(out.get()) == 0 && out.close() &&
                       ::rename(temporary.c_str(), target.c_str()) == 0;
  if (!written) {
    const int error = errno;
    ::unlink(temporary.c_str());
    cannot_write(path, error);
  }
  // The new name is durable once its folder is; where a file system cannot do that, the file still stands.
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  FileDescriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) (void)::fsync(directory.get());
}

}  // namespace sextant
