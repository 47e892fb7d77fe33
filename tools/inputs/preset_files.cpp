#include "tools/inputs/preset_files.hpp"

#include <fmt/format.h>

#include "core/base/error.hpp"

#ifndef SEXTANT_SOURCE_PRESETS
#define SEXTANT_SOURCE_PRESETS ""
#endif

namespace sextant {

namespace fs = std::filesystem;

fs::path find_presets(const std::string& folder) {
  std::error_code error;
  if (!folder.empty()) {
    for (const std::string_view kind : kPresetKinds)
      if (fs::is_directory(fs::path(folder) / kind, error)) return folder;
    throw ConfigError(Problem{.file = "--presets",
                              .key = "",
                              .value = folder,
                              .expected = "a folder with models/, clusters/, ...",
                              .hint = ""});
  }
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  const fs::path prefix = executable.parent_path().parent_path();
  fs::path installed = prefix / "share/sextant/presets", bundled = prefix / "presets";
  if (fs::is_directory(installed, error)) return installed;
  if (executable.parent_path().filename() == "bin" && fs::is_directory(bundled / "models", error))
    return bundled;
  if (fs::path source = SEXTANT_SOURCE_PRESETS; !source.empty() && fs::is_directory(source, error))
    return source;
  throw ConfigError(Problem{.file = installed.string(),
                            .key = "",
                            .value = "no such folder",
                            .expected = "the presets of sextant",
                            .hint = "install with cmake --install, or name the folder with --presets DIR"});
}

}  // namespace sextant
