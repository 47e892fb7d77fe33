#include "tools/inputs/job_secret.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "runtime/communicators/tcp_proof.hpp"
#include "runtime/communicators/tcp_socket.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLeast = 16, kMost = 4096;  // characters
constexpr const char* kHint =
    "all processes of a job need one secret: export SEXTANT_SECRET=$(openssl rand -hex 32) before the "
    "launcher, "
    "or a file of mode 600 on each machine";

[[noreturn]] void refuse_secret(const std::string& source, const std::string& found,
                                const std::string& expected) {
  throw ConfigError(Problem{"--comm env", source, found, expected, kHint});
}

std::string checked(std::string text, const std::string& source) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  if (text.size() < kLeast || text.size() > kMost)
    refuse_secret(source, fmt::format("a secret of {} characters", text.size()),
                  fmt::format("{} to {} characters", kLeast, kMost));
  return text;
}

std::string read_secret(const std::string& path) {
  const Socket file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe would wait for its writer
  struct stat about {};
  if (file.fd() < 0 || fstat(file.fd(), &about) != 0)
    refuse_secret(path, std::strerror(errno), "a file with the secret");
  if (!S_ISREG(about.st_mode)) refuse_secret(path, "no regular file", "a file with the secret");
  if (about.st_uid != geteuid() && about.st_uid != 0)
    refuse_secret(path, fmt::format("a file of user {}", about.st_uid), "a file of this user");
  if ((about.st_mode & 077) != 0)
    refuse_secret(path, fmt::format("mode {:o}, which others may use", about.st_mode & 0777),
                  "mode 600: chmod 600 " + path);
  std::string text(kMost + 2, '\0');
  const ssize_t n = ::read(file.fd(), text.data(), text.size());
  if (n < 0) refuse_secret(path, std::strerror(errno), "a file with the secret");
  text.resize(static_cast<std::size_t>(n));
  return checked(text, path);
}

std::string random_hex() {
  std::string text;
  for (const std::uint8_t byte : random_nonce()) text += fmt::format("{:02x}", byte);
  return text;
}

// Whole or not at all, and one of several processes that do so at once wins: a link to a file that is written.
void make_secret(const fs::path& path) {
  const auto require = [&](bool done) {
    if (!done)
      refuse_secret(path.string(), fmt::format("it cannot be made: {}", std::strerror(errno)), "a secret");
  };
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const std::string text = random_hex() + "\n";
  const std::string unique = fmt::format("{}.{}", path.string(), random_hex().substr(0, 16));
  {
    const Socket file(::open(unique.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    require(file.fd() >= 0);
    const bool written =
        ::write(file.fd(), text.data(), text.size()) == std::ssize(text) && fsync(file.fd()) == 0;
    const int why = errno;
    if (!written) ::unlink(unique.c_str());
    errno = why;
    require(written);
  }
  const bool linked = ::link(unique.c_str(), path.c_str()) == 0 || errno == EEXIST;
  const int why = errno;
  ::unlink(unique.c_str());
  errno = why;
  require(linked);
}

}  // namespace

JobSecret job_secret(const Environment& environment) {
  if (const std::string text = environment("SEXTANT_SECRET"); !text.empty())
    return {checked(text, "SEXTANT_SECRET"), "SEXTANT_SECRET"};
  if (const std::string path = environment("SEXTANT_SECRET_FILE"); !path.empty())
    return {read_secret(path), path};
  std::string folder = environment("XDG_CONFIG_HOME");
  if (const std::string home = environment("HOME"); folder.empty() && !home.empty())
    folder = home + "/.config";
  if (folder.empty()) refuse_secret("SEXTANT_SECRET", "nothing, and no HOME to keep one in", "a secret");
  const fs::path path = fs::path(folder) / "sextant" / "secret";
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) make_secret(path);
  return {read_secret(path.string()), path.string()};
}

}  // namespace sextant
