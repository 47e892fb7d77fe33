#include "tools/verbs/completion.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/cluster/cluster_spec.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/plan_limits.hpp"
#include "core/plan/stack_spec.hpp"
#include "tools/export/export_target.hpp"
#include "tools/inputs/preset_files.hpp"

namespace sextant {

namespace {

// What may follow an option, told by its metavar. heads: words behind which a value is to be written.
struct Value {
  enum Kind { none, words, heads, presets, files, folders } kind = none;
  std::string argument;  // the words, or the kind of preset
};

// "tp= cp= ...": the fields of a layout.
std::string layout_fields() {
  std::string all;
  for (int f = 0; f < kPlanFields; ++f) {
    const std::string limit = to_string(PlanLimits{{{static_cast<PlanField>(f), Relation::equal, 0}}});
    all += (f > 0 ? " " : "") + limit.substr(0, limit.find('=') + 1);
  }
  return all;
}

// "nodes= fabric.bandwidth_GBps= ... model.hidden= ...": what --set overrides, lists apart.
std::string setting_keys() {
  std::string all;
  const auto add = [&](const std::string& prefix, const nlohmann::json& value) {
    const nlohmann::json flat = value.flatten();
    for (const auto& [path, leaf] : flat.items()) {
      if (path.find_first_of("0123456789") != std::string::npos) continue;
      std::string key = path.substr(1);
      std::replace(key.begin(), key.end(), '/', '.');
      all += (all.empty() ? "" : " ") + prefix + key + "=";
    }
  };
  add("", ClusterSpec());
  add("model.", ModelSpec());
  add("training.", TrainingSpec());
  add("stack.", StackSpec());
  return all;
}

Value value_words(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return {};
  const std::string metavar = option.get_type_name();
  if (const auto words = choices(metavar); !words.empty())
    return {Value::words, fmt::format("{}", fmt::join(words, " "))};
  if (metavar == "MODEL") return {Value::presets, "models"};
  if (metavar == "CLUSTER") return {Value::presets, "clusters"};
  if (metavar == "STACK") return {Value::presets, "stacks"};
  if (metavar.starts_with("TARGET")) {
    std::string targets;
    for (const ExportTarget& t : export_targets()) targets += (targets.empty() ? "" : " ") + t.name;
    return {Value::words, targets};
  }
  if (metavar == "KIND") return {Value::words, fmt::format("{} show", fmt::join(kPresetKinds, " "))};
  if (metavar == "FIELD=VALUE,..." || metavar == "LIMIT,...") return {Value::heads, layout_fields()};
  if (metavar == "KEY=VALUE") return {Value::heads, setting_keys()};
  if (metavar == "DIR") return {Value::folders, ""};
  if (metavar == "ANSWER" || metavar.starts_with("FILE") || metavar.ends_with("|FILE"))
    return {Value::files, ""};
  return {Value::words, ""};  // takes a value that cannot be guessed
}

std::vector<const CLI::Option*> named_options(const CLI::App& app) {
  std::vector<const CLI::Option*> options;
  for (const CLI::Option* option : app.get_options())
    if (option->nonpositional() && !option->get_group().empty()) options.push_back(option);
  return options;
}

const CLI::Option* positional(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (!option->nonpositional() && !option->get_group().empty()) return option;
  return nullptr;
}

// `sextant presets show` is followed by the name of one.
bool shows_presets(const CLI::App& app) {
  const CLI::Option* first = positional(app);
  return first && first->get_type_name() == "KIND";
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const auto& name : option.get_snames()) names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string all_names(const CLI::App& app) {
  std::string all;
  for (const CLI::Option* option : named_options(app))
    for (const auto& name : names_of(*option)) all += (all.empty() ? "" : " ") + name;
  return all;
}

std::string verb_list() {
  std::string all;
  for (const auto& verb : verbs()) all += (all.empty() ? "" : " ") + verb.name;
  return all;
}

std::string bash_offer(const Value& value) {
  switch (value.kind) {
    case Value::words:
      return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$word\"))", value.argument);
    case Value::heads:
      return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$word\")); compopt -o nospace 2>/dev/null",
                         value.argument);
    case Value::presets:
      return fmt::format("COMPREPLY=($(compgen -W \"$(_sextant_presets {})\" -f -- \"$word\"))",
                         value.argument);
    case Value::files:
      return "COMPREPLY=($(compgen -f -- \"$word\"))";
    case Value::folders:
      return "COMPREPLY=($(compgen -d -- \"$word\"))";
    case Value::none:
      break;
  }
  return ":";
}

// Inside single quotes of a shell.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text)
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  return out + "'";
}

}  // namespace

std::string bash_completion(const CommandLine& line) {
  std::string out = fmt::format(R"sh(# bash completion of sextant; made by: sextant completion bash
_sextant_presets() {{
  "${{COMP_WORDS[0]}}" presets "$@" --names 2>/dev/null
}}
_sextant() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}}
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W '{} --help --version' -- "$word"))
    return
  fi
  case $verb in
)sh",
                                verb_list());
  for (std::size_t i = 0; i < line.apps.size(); ++i) {
    const CLI::App& app = *line.apps[i];
    out += fmt::format("    {})\n      case $before in\n", verbs()[i].name);
    for (const CLI::Option* option : named_options(app)) {
      const Value value = value_words(*option);
      if (value.kind == Value::none) continue;
      out += fmt::format("        {}) {}; return ;;\n", fmt::join(names_of(*option), "|"), bash_offer(value));
    }
    out += "      esac\n";
    out += fmt::format(
        "      if [[ $word == -* ]]; then COMPREPLY=($(compgen -W '{}' -- \"$word\")); return; fi\n",
        all_names(app));
    if (shows_presets(app))
      out +=
          "      if [[ $before == show ]]; then COMPREPLY=($(compgen -W \"$(_sextant_presets)\" -- "
          "\"$word\")); return; fi\n";
    if (const CLI::Option* first = positional(app))
      out += fmt::format("      {}\n", bash_offer(value_words(*first)));
    out += "      ;;\n";
  }
  out += "  esac\n}\ncomplete -o filenames -F _sextant sextant\n";
  return out;
}

namespace {

// What zsh's _arguments does for a value.
std::string zsh_action(const Value& value) {
  switch (value.kind) {
    case Value::words:
      return value.argument.empty() ? "" : fmt::format("({})", value.argument);
    case Value::heads:
      return fmt::format("compadd -S \"\" -- {}", value.argument);
    case Value::presets:
      // Behind a blank: _arguments would put words of its own before the kind.
      return fmt::format(" _sextant_presets {}", value.argument);
    case Value::files:
      return "_files";
    case Value::folders:
      return "_files -/";
    case Value::none:
      break;
  }
  return "";
}

// In a specification of _arguments, brackets and colons end a text.
std::string zsh_plain(std::string text) {
  for (char& c : text)
    if (c == '[')
      c = '(';
    else if (c == ']')
      c = ')';
    else if (c == ':')
      c = ',';
  return text;
}

// The specifications of all options of a verb.
std::string zsh_arguments(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : named_options(app)) {
    const Value value = value_words(*option);
    for (const auto& name : names_of(*option)) {
      std::string spec = name + "[" + zsh_plain(option->get_description()) + "]";
      if (value.kind != Value::none)
        spec += ":" + zsh_plain(option->get_type_name()) + ":" + zsh_action(value);
      out += " \\\n        " + shell_quoted(spec);
    }
  }
  if (const CLI::Option* first = positional(app))
    out += " \\\n        " +
           shell_quoted("*:" + zsh_plain(first->get_type_name()) + ":" + zsh_action(value_words(*first)));
  return out;
}

}  // namespace

std::string zsh_completion(const CommandLine& line) {
  std::string out = R"sh(#compdef sextant
# zsh completion of sextant; made by: sextant completion zsh
_sextant_presets() {
  compadd -- ${(f)"$(sextant presets $@ --names 2>/dev/null)"}
  _files
}
_sextant() {
  if (( CURRENT == 2 )); then
    local -a verbs=(
)sh";
  for (const auto& verb : verbs())
    out += fmt::format("      {}\n", shell_quoted(verb.name + ":" + verb.summary));
  out +=
      "    )\n    _describe verb verbs\n    return\n  fi\n  local verb=${words[2]}\n  shift words\n"
      "  (( CURRENT-- ))\n  case $verb in\n";
  for (std::size_t i = 0; i < line.apps.size(); ++i) {
    out += fmt::format("    {})\n", verbs()[i].name);
    if (shows_presets(*line.apps[i]))
      out += "      if [[ ${words[CURRENT-1]} == show ]]; then _sextant_presets; return; fi\n";
    out += "      _arguments" + zsh_arguments(*line.apps[i]) + "\n      ;;\n";
  }
  // Found in fpath, the whole script is read as the function when TAB is pressed for the first time.
  return out +
         "  esac\n}\nif [[ ${funcstack[1]} == _sextant ]]; then _sextant \"$@\"; else compdef _sextant "
         "sextant; "
         "fi\n";
}

std::string fish_completion(const CommandLine& line) {
  std::string out =
      "# fish completion of sextant; made by: sextant completion fish\ncomplete -c sextant -f\n";
  for (std::size_t i = 0; i < line.apps.size(); ++i) {
    const Verb& verb = verbs()[i];
    out += fmt::format("complete -c sextant -n __fish_use_subcommand -a {} -d {}\n", verb.name,
                       shell_quoted(verb.summary));
    const std::string head =
        fmt::format("complete -c sextant -n '__fish_seen_subcommand_from {}'", verb.name);
    const auto offer = [](const Value& value) -> std::string {
      switch (value.kind) {
        case Value::heads:
        case Value::words:
          return value.argument.empty() ? " -x" : fmt::format(" -x -a {}", shell_quoted(value.argument));
        case Value::presets:
          return fmt::format(" -r -F -a '(sextant presets {} --names 2>/dev/null)'", value.argument);
        case Value::files:
          return " -r -F";
        case Value::folders:
          return " -x -a '(__fish_complete_directories)'";
        case Value::none:
          break;
      }
      return "";
    };
    for (const CLI::Option* option : named_options(*line.apps[i])) {
      out += head;
      for (const auto& name : option->get_snames()) out += " -s " + name;
      for (const auto& name : option->get_lnames()) out += " -l " + name;
      out += offer(value_words(*option)) + " -d " + shell_quoted(option->get_description()) + '\n';
    }
    if (const CLI::Option* first = positional(*line.apps[i])) {
      const Value value = value_words(*first);
      if (value.kind == Value::words && !value.argument.empty())
        out += head + " -a " + shell_quoted(value.argument) + '\n';
      if (shows_presets(*line.apps[i]))
        out += fmt::format(
            "complete -c sextant -n '__fish_seen_subcommand_from {}; and __fish_seen_subcommand_from show' "
            "-a "
            "'(sextant presets --names 2>/dev/null)'\n",
            verb.name);
      if (value.kind == Value::files) out += head + " -F\n";
    }
  }
  return out;
}

}  // namespace sextant
