#include "tools/import/import_file.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/file_io.hpp"
#include "core/model/model_files.hpp"
#include "tools/import/import_megatron.hpp"
#include "tools/import/shell_script.hpp"

namespace sextant {

namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kLongestFile = 4 << 20;

[[noreturn]] void unknown_file(const fs::path& path, const std::string& hint) {
  throw ConfigError(Problem{path.string(), "", "no training run that can be read",
                            "a Megatron-LM command line or script", hint});
}

ImportedRun import_script(const std::string& text, const fs::path& path,
                          const ShellEnvironment& environment) {
  const ShellScript script = read_shell_script(text, path, environment);
  const CommandFlags command = training_command(script);
  if (!is_megatron_command(command))
    unknown_file(path, command.count() > 0 ? fmt::format("what it starts ({}) has none of Megatron-LM's options", command.program)
                                           : "");
  ImportedRun run = import_megatron(command, path.string());
  run.unread.insert(run.unread.end(), script.notes.begin(), script.notes.end());
  for (const std::string& name : script.from_environment) run.assumed.push_back(name + " of the environment");
  return run;
}

bool same_shape(const ModelSpec& a, const ModelSpec& b) {
  return a.n_layers == b.n_layers && a.hidden == b.hidden && a.n_heads == b.n_heads && a.n_kv_heads == b.n_kv_heads &&
         a.head_dim == b.head_dim && a.ffn_hidden == b.ffn_hidden && a.gated_mlp == b.gated_mlp;
}

}  // namespace

ImportedRun import_file(const fs::path& path, const ShellEnvironment& environment) {
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? path / "launch.sh" : path;
  const std::string text = read_text_file(file, kLongestFile);
  return import_script(text, file, environment);
}

void name_by_shape(ImportedRun& run, const fs::path& presets) {
  if (!run.model) return;
  ModelSpec& model = *run.model;
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(presets / "models", error))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  const auto agreement = [&](const ModelSpec& preset) {  // beyond the shape, to choose among presets of one shape
    return (preset.rope_scaling == model.rope_scaling ? 2 : 0) + (preset.max_positions == model.max_positions ? 1 : 0) +
           (preset.rope_theta == model.rope_theta ? 1 : 0);
  };
  std::optional<ModelSpec> best;
  for (const fs::path& file : files) {
    const ModelSpec preset = load_model(file.stem().string(), presets);
    if (!same_shape(preset, model) || (model.vocab_size > 0 && preset.vocab_size != model.vocab_size)) continue;
    if (!best || agreement(preset) > agreement(*best)) best = preset;
  }
  if (!best) return;
  if (model.vocab_size == 0) {
    model.vocab_size = best->vocab_size;
    run.assumed.push_back(fmt::format("a vocabulary of {}, as {} of this shape has", best->vocab_size, best->name));
  }
  model.name = best->name;
}

}  // namespace sextant
