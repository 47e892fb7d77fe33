// The files of a question: which it reads, and where nothing may be written.
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "tools/inputs/inputs.hpp"

namespace sextant {

namespace fs = std::filesystem;

namespace {

// What is to be written must not be what is read: "the same file" by its name or behind a link.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) || fs::weakly_canonical(fs::absolute(a, error), error) ==
                                            fs::weakly_canonical(fs::absolute(b, error), error);
}

}  // namespace

std::vector<std::string> files_read(const QuestionOptions& options) {
  std::vector<std::string> files;
  for (const std::string& name : {options.model, options.cluster, options.stack, options.plan,
                                  options.calibration, options.profile, options.from}) {
    std::error_code error;
    if (fs::is_directory(name, error)) {
      for (const char* inside : {"config.json", "params.json", "model.safetensors.index.json"})
        files.push_back((fs::path(name) / inside).string());
    } else if (fs::exists(name, error)) {
      files.push_back(name);
    }
  }
  return files;
}

void check_output(const std::string& flag, const std::string& path, const std::vector<std::string>& others) {
  if (path.empty()) return;
  if (path == "-")
    throw ConfigError(Problem{.file = flag,
                              .key = "",
                              .value = "-",
                              .expected = "a file",
                              .hint = "/dev/stdout prints it among the rest; ./- is a file of that name"});
  for (const auto& other : others)
    if (!other.empty() && same_file(path, other) && !fs::is_character_file(path))
      throw ConfigError(Problem{.file = flag,
                                .key = "",
                                .value = path,
                                .expected = "a file of its own",
                                .hint = "the command reads or writes this file already"});
  check_writable(path);
}

}  // namespace sextant
