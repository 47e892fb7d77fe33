// A folder that is whole or not there: made beside OUT as OUT.partial-PID and renamed when everything is in it.
#pragma once

#include <filesystem>
#include <optional>

#include "core/base/file_descriptor.hpp"

namespace sextant {

// It is locked while it lives, and removed unless it becomes OUT. What killed processes have left of the same OUT, which
// nobody locks, is removed when the next one begins.
class DraftFolder {
 public:
  explicit DraftFolder(const std::filesystem::path& out);  // throws ConfigError when it cannot be made
  ~DraftFolder();
  DraftFolder(const DraftFolder&) = delete;
  DraftFolder& operator=(const DraftFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Over an empty folder, or nothing. Throws BackendError.
  void become(const std::filesystem::path& out);

 private:
  std::filesystem::path path_;
  std::optional<FileDescriptor> lock_;
  bool kept_ = false;
};

}  // namespace sextant
