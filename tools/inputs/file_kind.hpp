// A file given to the wrong option: what it is by its content, and which option takes it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/base/error.hpp"

namespace sextant {

enum class FileUse {
  plan,
  model,
  cluster,
  stack,
  calibration,
  profile,
  runs,
  log,
  nccl,
  tried,
  from,
  answer,
  trace,
  foreign  // of another program, which no option takes
};

struct FileKind {
  FileUse use;
  std::string what;      // "a training log of Megatron-LM"
  std::string taken_by;  // "sextant calibrate --log takes it"
};

// Nothing for a file that cannot be read, or is of no kind that is known.
std::optional<FileKind> kind_of_file(const std::filesystem::path&);

// Throws ConfigError where the file is plainly of another kind than what is wanted.
void refuse_other_kind(FileUse wanted, const std::string& file);

// What `read` returns, which reads the file for this use. Where that throws ConfigError and the file is plainly of another kind, the
// error says so instead.
template <class Read>
auto reading_as(FileUse use, const std::string& file, const Read& read) {
  try {
    return read();
  } catch (const ConfigError&) {
    refuse_other_kind(use, file);
    throw;
  }
}

}  // namespace sextant
