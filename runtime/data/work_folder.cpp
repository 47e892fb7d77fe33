#include "runtime/data/work_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "runtime/data/data_index.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockFile = "lock";

// What a preparation makes, also where a kill has left one half (NAME.XXXXXX).
bool is_ours(const fs::path& file) {
  const std::string name = file.filename().string();
  return file.extension() == ".tokens" || file.extension() == ".documents" || file.extension() == ".blocks" ||
         file.stem().extension() == ".blocks" || name.starts_with(kJournalFile) ||
         name.starts_with(kDataIndexFile) || name.starts_with(kTokenizerConfig) ||
         std::ranges::any_of(kTokenizerFiles, [&](std::string_view t) { return name.starts_with(t); });
}

void sync(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  ::close(fd);
}

}  // namespace

void require_absent(const fs::path& out) {
  if (fs::exists(fs::symlink_status(out)))
    throw ConfigError(Problem{"--out", "", out.string(), "a folder that is not there yet",
                              "nothing is overwritten: name another, or remove it"});
}

WorkFolder::WorkFolder(const fs::path& out) : path_(out.string() + ".partial") {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error)
    throw ConfigError(Problem{"--out", "", path_.string(), "a folder that can be made", error.message()});
  lock_ = ::open((path_ / kLockFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (lock_ < 0)
    throw ConfigError(
        Problem{"--out", "", path_.string(), "a folder one may write to", std::strerror(errno)});
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0)
    throw ConfigError(Problem{"--out", "", path_.string(), "a folder that nobody else works in",
                              "another sextant data is making this data set"});
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!committed_ && !fs::exists(path_ / kJournalFile, ignored)) {
    remove_all_but({});
    fs::remove(path_ / kLockFile, ignored);
    fs::remove(path_, ignored);
  }
  ::close(lock_);
}

void WorkFolder::require_own_files() const {
  for (const auto& entry : fs::directory_iterator(path_)) {
    if (entry.path().filename() != kLockFile && !is_ours(entry.path()))
      throw ConfigError(Problem{"--out", "", entry.path().string(), "a folder with nothing else in it", ""});
  }
}

void WorkFolder::remove_all_but(const std::vector<std::string>& shards) const {
  std::error_code ignored;
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const fs::path& file = entry.path();
    if (is_ours(file) && file.filename() != kJournalFile &&
        std::ranges::find(shards, file.stem().string()) == shards.end())
      others.push_back(file);
  }
  for (const fs::path& file : others) fs::remove(file, ignored);
}

void WorkFolder::commit(const fs::path& out) {
  fs::remove(path_ / kJournalFile);
  fs::remove(path_ / kLockFile);
  sync(path_);
  std::error_code error;
  fs::rename(path_, out, error);
  if (error)
    throw BackendError(
        fmt::format("{}: cannot be renamed to {}: {}", path_.string(), out.string(), error.message()));
  committed_ = true;
  sync(out.has_parent_path() ? out.parent_path() : fs::path("."));
}

}  // namespace sextant
