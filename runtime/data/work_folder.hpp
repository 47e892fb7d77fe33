// The folder in which a data set is made, OUT.partial: held by one process at a time, renamed to OUT when it is whole.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sextant {

inline constexpr const char* kJournalFile = "progress.json";  // where a preparation can go on

// Throws ConfigError when something is at `out`: nothing is overwritten.
void require_absent(const std::filesystem::path& out);

class WorkFolder {
 public:
  explicit WorkFolder(
      const std::filesystem::path& out);  // throws ConfigError, also when another process has it
  ~WorkFolder();                          // what nothing could go on from is not left behind
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Empty of all but our own files; removes nothing that could be somebody's.
  void require_own_files() const;
  // Removes token files that do not belong to these shards: of what was not flushed before a kill.
  void remove_all_but(const std::vector<std::string>& shards) const;
  void commit(const std::filesystem::path& out);  // throws BackendError when the disk refuses

 private:
  std::filesystem::path path_;
  int lock_ = -1;
  bool committed_ = false;
};

}  // namespace sextant
