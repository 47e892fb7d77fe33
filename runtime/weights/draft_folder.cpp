#include "runtime/weights/draft_folder.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

// OUT/ is OUT.
fs::path without_slash(const fs::path& out) { return out.has_filename() ? out : out.parent_path(); }

std::string draft_prefix(const fs::path& out) { return out.filename().string() + ".partial-"; }

int open_folder(const fs::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

void remove_leftovers(const fs::path& out) {
  const fs::path folder = out.has_parent_path() ? out.parent_path() : ".";
  const std::string prefix = draft_prefix(out);
  std::vector<fs::path> drafts;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(prefix) && is_number(std::string_view(name).substr(prefix.size())))
      drafts.push_back(at->path());
  }
  for (const fs::path& draft : drafts) {
    const FileDescriptor held(open_folder(draft));
    if (held.get() >= 0 && ::flock(held.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(draft, error);
  }
}

}  // namespace

DraftFolder::DraftFolder(const fs::path& to) {
  const fs::path out = without_slash(to);
  path_ = out.parent_path() / fmt::format("{}{}", draft_prefix(out), ::getpid());
  remove_leftovers(out);
  std::error_code error;
  fs::create_directories(path_, error);
  if (error)
    throw ConfigError(Problem{"--out", "", out.string(), "a folder that can be made", error.message()});
  lock_.emplace(open_folder(path_));
  (void)::flock(lock_->get(), LOCK_EX | LOCK_NB);  // storage without locks: its leftovers stay
}

DraftFolder::~DraftFolder() {
  std::error_code ignored;
  if (!kept_) fs::remove_all(path_, ignored);
}

void DraftFolder::become(const fs::path& out) {
  std::error_code error;
  fs::rename(path_, out, error);
  if (error) throw BackendError(fmt::format("cannot rename to {}: {}", out.string(), error.message()));
  kept_ = true;
}

}  // namespace sextant
