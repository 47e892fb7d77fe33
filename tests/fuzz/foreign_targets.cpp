// Configurations, scripts and modules of other frameworks.
#include <algorithm>
#include <array>
#include <string>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tests/fuzz/checks.hpp"
#include "tests/fuzz/targets.hpp"
#include "tests/support/temp_dir.hpp"
#include "tools/import/import_file.hpp"
#include "tools/import/python_settings.hpp"
#include "tools/import/shell_script.hpp"

namespace sextant::fuzz {

void foreign_file(std::string_view text) {
  if (text.empty()) return;
  constexpr std::array kEndings = {".sh", ".json", ".toml", ".yaml", ".py", ".log", ""};
  static const TempDir folder;
  const std::string name =
      std::to_string(::getpid()) + kEndings.at(static_cast<unsigned char>(text[0]) % kEndings.size());
  const auto file = folder.write(name, text.substr(1));
  (void)importable_as(std::string(text.substr(1)));
  ImportedRun run;
  const bool read = accepts([&] { run = import_file(file.string(), folder.path(), {}); });
  std::filesystem::remove(file);
  if (!read) return;
  SEXTANT_CHECK(!run.what.empty() && !run.stack.empty(), "a run of no framework");
  accepts([&] {
    const SizedRun sized = size_run(run, 64, 8);
    SEXTANT_CHECK(sized.plan.dp >= 1 && sized.plan.micro_batch >= 1 && sized.global_batch >= 0, "a degree");
    SEXTANT_CHECK(run.dp ? sized.plan.dp == *run.dp : sized.plan.world() >= 64, "of another size");
  });
}

void shell_script(std::string_view text) {
  const ShellScript script = read_shell_script(std::string(text), "fuzz.sh", {});
  for (const ShellCommand& command : script.commands)
    SEXTANT_CHECK(!command.words.empty() && command.line >= 1, "a command of no word");
}

void python_module(std::string_view text) {
  const std::string module(text);
  for (const std::string& function : config_functions(module)) {
    nlohmann::json settings;
    if (accepts([&] { settings = python_settings(module, function); }))
      SEXTANT_CHECK(settings.is_object(), "settings without keys");
  }
}

}  // namespace sextant::fuzz
