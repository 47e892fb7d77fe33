#include "tools/import/import_file.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "core/base/packed_text.hpp"
#include "core/base/shallow_json.hpp"
#include "core/base/words.hpp"
#include "core/model/model_files.hpp"
#include "tools/import/config_text.hpp"
#include "tools/import/import_megatron.hpp"
#include "tools/import/import_settings.hpp"
#include "tools/import/megatron_log.hpp"
#include "tools/import/python_settings.hpp"
#include "tools/import/shell_script.hpp"

namespace sextant {

namespace {

namespace fs = std::filesystem;

using Settings = std::optional<nlohmann::json>;

struct SettingsReader {
  const char* what;
  bool (*is)(const nlohmann::json&);
  ImportedRun (*read)(const nlohmann::json&, const ImportSource&);
};
ImportedRun import_deepspeed_alone(const nlohmann::json& settings, const ImportSource& source) {
  return import_deepspeed(settings, {}, source);
}
constexpr SettingsReader kReaders[] = {
    {"an accelerate configuration", is_accelerate, import_accelerate},
    {"a DeepSpeed configuration", is_deepspeed, import_deepspeed_alone},
    {"a nanotron configuration", is_nanotron, import_nanotron},
    {"a NeMo 1 configuration", is_nemo, import_nemo},
    {"a Megatron-LM configuration (--yaml-cfg)", is_megatron_yaml, import_megatron_yaml},
    {"a Megatron-Bridge configuration", is_bridge, import_bridge},
    {"a torchtitan configuration", is_torchtitan, import_torchtitan}};

const SettingsReader* reader_of(const Settings& settings) {
  if (!settings || settings->contains("schema")) return nullptr;
  for (const SettingsReader& reader : kReaders)
    if (reader.is(*settings)) return &reader;
  return nullptr;
}

Settings json_settings(const std::string& text) {
  nlohmann::json j = json_or_discarded(text);
  return j.is_object() ? Settings(std::move(j)) : std::nullopt;
}

// The settings of the first language in which some framework's are written.
Settings settings_of(const std::string& text) {
  for (Settings settings : {json_settings(text), toml_settings(text), yaml_settings(text)})
    if (reader_of(settings)) return settings;
  return std::nullopt;
}

bool is_python(const std::string& text) {
  return text.find("ParallelismConfig(") != text.npos || text.find("TrainingConfig(") != text.npos;
}

[[noreturn]] void unknown_file(const std::string& file, const std::string& value, const std::string& hint) {
  throw ConfigError(Problem{file, "", value, kImportable, hint});
}

// A file that is empty, or not of the language that its name promises: with the place where reading it ends.
void refuse_unreadable(const std::string& text, const fs::path& path, const std::string& file) {
  if (text.find_first_not_of(" \t\r\n") == text.npos) unknown_file(file, "an empty file", "");
  const std::string extension = path.extension().string();
  if (extension == ".json" && json_or_discarded(text).is_discarded()) parse_json(text, file);
  std::string why;
  if (extension == ".toml") toml_settings(text, &why);
  if (extension == ".yaml" || extension == ".yml") yaml_settings(text, &why);
  if (!why.empty()) unknown_file(file, "not read as " + extension.substr(1), why);
}

// Options of torchtitan's command line, --section.key=value, over the file's.
void add_titan_options(const CommandFlags& command, nlohmann::json& settings) {
  for (const auto& [name, values] : command.options) {
    const std::size_t dot = name.find('.');
    if (dot == name.npos || values.size() > 1) continue;
    std::string section = name.substr(2, dot - 2), key = name.substr(dot + 1);
    std::replace(section.begin(), section.end(), '-', '_');
    std::replace(key.begin(), key.end(), '-', '_');
    if (!settings[section].is_object()) settings[section] = nlohmann::json::object();
    const nlohmann::json value = values.empty() ? nlohmann::json(true) : json_or_discarded(values[0]);
    settings[section][key] = value.is_discarded() ? nlohmann::json(values.at(0)) : value;
  }
}

ImportedRun import_python(const std::string& text, std::string function, const CommandFlags& command,
                          const ImportSource& source) {
  const std::vector<std::string> all = config_functions(text);
  if (function.empty() && all.size() == 1) function = all.front();
  if (std::ranges::find(all, function) == all.end()) {
    if (all.empty())
      unknown_file(source.file, "no function that makes a TrainingConfig or ParallelismConfig", "");
    const std::string near = function.empty() ? "" : closest(function, all);
    throw ConfigError(Problem{
        source.file, "", function.empty() ? fmt::format("{} functions", all.size()) : "function " + function,
        "one of: " + first_words(all, 12),
        fmt::format("--from {}:{}", source.file.substr(0, source.file.rfind(':')),
                    near.empty() ? all.front() : near)});
  }
  nlohmann::json settings = python_settings(text, function);
  add_titan_options(command, settings);
  return import_torchtitan(settings, source);
}

// The file that an option of the command names, beside the script; or what a here-document of the script writes there.
struct NamedFile {
  std::string name, text;
};
std::optional<NamedFile> named_file(const CommandFlags& command, const ShellScript& script,
                                    const fs::path& folder) {
  for (const char* option :
       {"--job.config-file", "--deepspeed", "--deepspeed-config", "--config-file", "--config"}) {
    const auto at = command.options.find(option);
    if (at == command.options.end() || at->second.empty() || has_unknown(at->second.front())) continue;
    const std::string& name = at->second.front();
    if (const auto document = script.documents.find(name); document != script.documents.end())
      return NamedFile{name, document->second};
    const fs::path file = fs::path(name).is_absolute() ? fs::path(name) : folder / name;
    return NamedFile{file.string(), read_text_file(file, kLongestFile)};
  }
  return std::nullopt;
}

// Megatron-DeepSpeed: Megatron's options, and of DeepSpeed's settings what they say about the state.
ImportedRun import_megatron_deepspeed(const CommandFlags& command, const nlohmann::json& settings,
                                      const ImportSource& source) {
  ImportedRun run = import_megatron(command, source.file);
  const ImportedRun state = import_deepspeed(settings, command, source);
  run.what = "a Megatron-DeepSpeed command line";
  run.stack = state.plan.zero_stage == 3             ? "megatron-deepspeed-zero3"
              : run.formats.parameter == Dtype::bf16 ? "megatron-deepspeed-bloom-bf16"
                                                     : "megatron-deepspeed-bloom";
  run.plan.zero_stage = state.plan.zero_stage;
  run.plan.optimizer_offload = state.plan.optimizer_offload;
  run.plan.parameter_offload = state.plan.parameter_offload;
  run.plan.overlap_grad_reduce = state.plan.overlap_grad_reduce;
  run.plan.overlap_param_gather = true;
  run.overlap_stated = false;
  std::erase_if(run.unread, [](const std::string& option) {
    return option.starts_with("--deepspeed") || option.starts_with("--zero-stage") ||
           option.starts_with("--no-pipeline-parallel");
  });
  return run;
}

ImportedRun import_command(const CommandFlags& command, const ShellScript& script, const fs::path& path,
                           const ImportSource& source) {
  const bool megatron = is_megatron_command(command);
  std::optional<NamedFile> named;
  try {
    named = named_file(command, script, path.parent_path());
  } catch (const ConfigError&) {
    if (!megatron) throw;
  }
  Settings settings = named ? settings_of(named->text) : std::nullopt;
  if (named && !settings) refuse_unreadable(named->text, named->name, named->name);
  if (named && !settings && !megatron)
    unknown_file(named->name, "no settings that can be read",
                 "it is what " + path.string() + " starts its program with");
  const bool titan = std::ranges::any_of(command.options,
                                         [](const auto& o) { return o.first.starts_with("--parallelism."); });
  const bool deepspeed = (settings && is_deepspeed(*settings)) || command.has("--zero-stage");
  if (megatron && deepspeed)
    return import_megatron_deepspeed(command, settings.value_or(nlohmann::json::object()), source);
  if (megatron) return import_megatron(command, source.file);
  const ImportSource read{named ? named->name : source.file, source.presets, source.layers};
  if (deepspeed) return import_deepspeed(settings.value_or(nlohmann::json::object()), command, read);
  if (titan || (settings && is_torchtitan(*settings))) {
    nlohmann::json whole = settings.value_or(nlohmann::json::object());
    add_titan_options(command, whole);
    return import_torchtitan(whole, read);
  }
  if (const SettingsReader* reader = reader_of(settings)) return reader->read(*settings, read);
  unknown_file(source.file,
               command.count() > 0 ? fmt::format("{} with options of no framework that is known here",
                                                 command.program.empty() ? "a command" : command.program)
                                   : "no training run",
               first_words(script.notes, 3, "; "));
}

ImportedRun import_script(const std::string& text, const fs::path& path, const ImportSource& source,
                          const ShellEnvironment& environment) {
  const ShellScript script = read_shell_script(text, path, environment);
  const CommandFlags command = training_command(script);
  // A module of torchtitan beside the script, as `sextant export` writes it.
  const auto module = command.options.find("--module");
  const auto function = command.options.find("--config");
  ImportedRun run;
  if (module != command.options.end() && function != command.options.end() && !module->second.empty() &&
      !function->second.empty()) {
    std::string file = module->second.front();
    std::replace(file.begin(), file.end(), '.', '/');
    const std::string name = (path.parent_path() / (file + ".py")).string();
    run = import_python(read_text_file(name, kLongestFile), function->second.front(), command,
                        {name, source.presets, source.layers});
  } else {
    run = import_command(command, script, path, source);
  }
  if (command.gpus) run.gpus = command.gpus;
  run.unread.insert(run.unread.end(), script.notes.begin(), script.notes.end());
  for (const std::string& name : script.from_environment) run.assumed.push_back(name + " of the environment");
  return run;
}

bool same_shape(const ModelSpec& a, const ModelSpec& b) {
  return a.n_layers == b.n_layers && a.hidden == b.hidden && a.n_heads == b.n_heads &&
         a.n_kv_heads == b.n_kv_heads && a.head_dim == b.head_dim && a.ffn_hidden == b.ffn_hidden &&
         a.gated_mlp == b.gated_mlp;
}

// Gives the model the name of a preset of its shape, and the vocabulary that its file leaves open.
void name_by_shape(ImportedRun& run, const fs::path& presets) {
  if (!run.model) return;
  ModelSpec& model = *run.model;
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(presets / "models", error))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  const auto agreement =
      [&](const ModelSpec& preset) {  // beyond the shape, to choose among presets of one shape
        return (preset.name == model.name ? 8 : 0) + (preset.rope_scaling == model.rope_scaling ? 2 : 0) +
               (preset.max_positions == model.max_positions ? 1 : 0) +
               (preset.rope_theta == model.rope_theta ? 1 : 0);
      };
  std::optional<ModelSpec> best;
  for (const fs::path& file : files) {
    const ModelSpec preset = load_model(file.stem().string(), presets);
    if (!same_shape(preset, model) || (model.vocab_size > 0 && preset.vocab_size != model.vocab_size))
      continue;
    if (!best || agreement(preset) > agreement(*best)) best = preset;
  }
  if (!best) return;
  if (model.vocab_size == 0) {
    model.vocab_size = best->vocab_size;
    run.assumed.push_back(
        fmt::format("a vocabulary of {}, as {} of this shape has", best->vocab_size, best->name));
  }
  model.name = best->name;
}

// What a run of Megatron-LM printed when it started: all its arguments, of which those that nobody asked for are no news.
ImportedRun import_log(const CommandFlags& arguments, const ImportSource& source) {
  ImportedRun run = import_megatron(arguments, source.file);
  run.what = "a log of Megatron-LM with its arguments";
  std::erase_if(run.unread,
                [](const std::string& option) { return option.find(": taken as") == option.npos; });
  return run;
}

ImportedRun read_run(const std::string& text, const fs::path& path, const std::string& function,
                     const ImportSource& source, const ShellEnvironment& environment) {
  if (const Settings settings = settings_of(text)) return reader_of(settings)->read(*settings, source);
  if (path.extension() == ".py" || (!function.empty() && is_python(text)))
    return import_python(text, function, {}, source);
  if (const auto arguments = logged_arguments(text); arguments && is_megatron_command(*arguments))
    return import_log(*arguments, source);
  refuse_unreadable(text, path, source.file);
  return import_script(text, path, source, environment);
}

}  // namespace

ImportedRun import_file(const std::string& file, const fs::path& presets, const ShellEnvironment& environment,
                        int layers) {
  std::error_code error;
  fs::path path = file;
  std::string function;
  if (const std::size_t colon = file.rfind(".py:"); colon != file.npos && !fs::exists(path, error)) {
    path = file.substr(0, colon + 3);
    function = file.substr(colon + 4);
  }
  if (fs::is_directory(path, error)) path /= "launch.sh";
  ImportedRun run =
      read_run(read_packed_text(path, kLongestFile), path, function, {file, presets, layers}, environment);
  run.file = file;
  name_by_shape(run, presets);
  if (run.model && run.model->name.empty()) run.model->name = "model of " + path.filename().string();
  return run;
}

std::string importable_as(const std::string& text) {
  if (text.size() > kLongestFile) return "";
  if (const Settings settings = settings_of(text)) return reader_of(settings)->what;
  if (is_python(text) && !config_functions(text).empty()) return "a torchtitan configuration";
  const ShellScript script = read_shell_script(text, "", {});
  const CommandFlags command = training_command(script);
  if (is_megatron_command(command)) return "a Megatron-LM command line";
  for (const char* option : {"--job.config-file", "--deepspeed", "--deepspeed-config"})
    if (command.has(option)) return "a command that starts training";
  return "";
}

std::string preset_of_name(const std::string& name, const fs::path& presets) {
  std::string word = lower(name.substr(name.rfind('/') == name.npos ? 0 : name.rfind('/') + 1));
  if (word.starts_with("meta-")) word = word.substr(5);
  for (const char* ending : {"-hf", "-base", "-instruct", "-chat"})
    if (word.ends_with(ending)) word = word.substr(0, word.size() - std::string_view(ending).size());
  std::replace(word.begin(), word.end(), '_', '-');
  std::error_code error;
  return !word.empty() && fs::exists(presets / "models" / (word + ".json"), error) ? word : "";
}

}  // namespace sextant
