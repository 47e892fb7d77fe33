#include "runtime/checkpoint/run_folder.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "step-";

fs::path checkpoints(const fs::path& run) { return run / "checkpoints"; }

std::string step_name(std::int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return {};
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (read.ec != std::errc{} || read.ptr != end || step < 0 || step_name(step) != name) return {};
  return step;
}

constexpr std::string_view kUnfinished = ".unfinished", kOld = ".old";

// Of a run that was killed; other hidden files are not its own.
bool is_leftover(std::string_view name) {
  for (const std::string_view end : {kUnfinished, kOld})
    if (name.starts_with(".") && name.ends_with(end) && name.size() > end.size() &&
        step_of(std::string(name.substr(1, name.size() - 1 - end.size()))))
      return true;
  return false;
}

[[noreturn]] void refuse(std::string_view what, const fs::path& path, int error) {
  throw BackendError(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error)));
}

void flush_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool done = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  // Some file systems cannot flush a folder, and say so.
  if (!done && error != EINVAL) refuse("flush", folder, error);
}

void give_name(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) refuse("rename", from, errno);
}

// First out of sight by one rename: half of a checkpoint never has the name of a whole one.
void remove_checkpoint(const fs::path& path) {
  const fs::path hidden = path.parent_path() / ("." + path.filename().string() + std::string(kOld));
  std::error_code error;
  fs::remove_all(hidden, error);
  give_name(path, hidden);
  fs::remove_all(hidden, error);  // what is left is a leftover
}

}  // namespace

std::vector<CommittedCheckpoint> committed_checkpoints(const fs::path& run) {
  std::vector<CommittedCheckpoint> found;
  const fs::path folder = checkpoints(run);
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (const auto step = step_of(at->path().filename().string())) found.push_back({*step, at->path()});
  // No folder is no checkpoint; one that cannot be listed, or a link to nowhere, may hold some.
  std::error_code unused;
  if (error && (error != std::errc::no_such_file_or_directory || fs::is_symlink(folder, unused)))
    throw ConfigError(Problem{folder.string(), "", error.message(), "the folder of the run's checkpoints",
                              "is its storage mounted, and may you read it?"});
  std::ranges::sort(found, {}, &CommittedCheckpoint::step);
  return found;
}

fs::path checkpoint_path(const fs::path& run, std::int64_t step) {
  return checkpoints(run) / step_name(step);
}

fs::path unfinished_path(const fs::path& run, std::int64_t step) {
  return checkpoints(run) / ("." + step_name(step) + std::string(kUnfinished));
}

void commit_checkpoint(const fs::path& run, std::int64_t step) {
  const fs::path unfinished = unfinished_path(run, step), path = checkpoint_path(run, step);
  flush_folder(unfinished);
  if (fs::exists(path)) remove_checkpoint(path);
  give_name(unfinished, path);
  flush_folder(checkpoints(run));
  flush_folder(run);  // in which the first save has made that one
}

void discard_unfinished(const fs::path& run, std::int64_t step) {
  std::error_code error;
  fs::remove_all(unfinished_path(run, step), error);
}

void clear_leftovers(const fs::path& run) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator at(checkpoints(run), error), end; !error && at != end; at.increment(error))
    if (is_leftover(at->path().filename().string())) leftovers.push_back(at->path());
  for (const fs::path& path : leftovers) {
    fs::remove_all(path, error);
    if (error) refuse("remove", path, error.value());
  }
}

void drop_old_checkpoints(const fs::path& run, const Retention& keep, std::int64_t newest) {
  auto all = committed_checkpoints(run);
  std::erase_if(all, [&](const CommittedCheckpoint& c) { return c.step > newest; });
  std::int64_t block = 0;  // of keep.every steps, the last one of which a checkpoint is kept
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool recent = i + static_cast<std::size_t>(std::max(1, keep.last)) >= all.size();
    const bool milestone = keep.every > 0 && all[i].step / keep.every > block;
    if (milestone) block = all[i].step / keep.every;
    if (!recent && !milestone) remove_checkpoint(all[i].path);
  }
}

void set_aside_after(const fs::path& run, std::int64_t step) {
  for (const auto& [at, path] : committed_checkpoints(run)) {
    if (at <= step) continue;
    fs::path aside = checkpoints(run) / ("aside-" + step_name(at));
    for (int n = 2; fs::exists(aside); ++n)
      aside = checkpoints(run) / fmt::format("aside-{}-{}", step_name(at), n);
    give_name(path, aside);
  }
}

RunLock::RunLock(const fs::path& run) {
  const fs::path path = run / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd_ < 0) refuse("open", path, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    const std::string pid = fmt::format("{}\n", ::getpid());
    if (::ftruncate(fd_, 0) == 0) (void)!::pwrite(fd_, pid.data(), pid.size(), 0);
    return;
  }
  const int error = errno;
  std::array<char, 32> owner{};
  const ssize_t n = ::pread(fd_, owner.data(), owner.size() - 1, 0);
  ::close(fd_);
  if (error != EWOULDBLOCK) refuse("lock", path, error);
  std::string who(owner.data(), static_cast<std::size_t>(std::max<ssize_t>(0, n)));
  while (!who.empty() && who.back() == '\n') who.pop_back();
  throw ConfigError(
      Problem{"-o", "", run.string(), "a folder that no other run writes into",
              fmt::format("process {} is at work there", who.empty() ? "of another run" : who)});
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);  // the file stays: removing it would let two runs lock two files of one name
}

}  // namespace sextant
