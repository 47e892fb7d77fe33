// `sextant presets`: what is built in (models, clusters, devices, fabrics, stacks), and every value of one of
// them with its source.
#include <algorithm>
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "core/base/preset_path.hpp"
#include "core/base/shallow_json.hpp"
#include "core/model/model_files.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/preset_files.hpp"
#include "tools/inputs/preset_values.hpp"
#include "tools/terminal/table.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct PresetsOptions {
  std::vector<std::string> words;
  bool names = false;
};

// An empty object when the file cannot be read: for lists, which say what they can about the others.
Json content_or_nothing(const fs::path& path) {
  try {
    Json value = json_or_discarded<Json>(read_text_file(path));
    return value.is_object() ? value : Json::object();
  } catch (const ConfigError&) {
    return Json::object();
  }
}

struct Found {
  std::string kind, name;
  fs::path path;
};

// Preset files that no option names: what fits start from, how runs are mapped to stacks. By kind.
std::vector<Found> other_files(const fs::path& presets) {
  std::vector<Found> files;
  for (const auto& name : preset_names(presets, "calibration"))
    files.push_back({"calibration", name, presets / "calibration" / (name + ".json")});
  for (const auto& name : preset_names(presets, "."))
    if (name != "meanings") files.push_back({name, name, presets / (name + ".json")});
  return files;
}

std::string lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  return text;
}

// All presets of that name, whatever its case, or that have it among their aliases.
std::vector<Found> find(const fs::path& presets, const std::string& name) {
  std::vector<Found> by_name, by_alias;
  std::vector<std::string> all;
  const std::string wanted = lower_case(name);
  for (const std::string_view kind : kPresetKinds)
    for (const auto& known : preset_names(presets, kind)) {
      const fs::path path = presets / kind / (known + ".json");
      all.push_back(known);
      if (lower_case(known) == wanted) by_name.push_back({std::string(kind), known, path});
    }
  for (const Found& other : other_files(presets)) {
    all.push_back(other.name);
    if (lower_case(other.name) == wanted) by_name.push_back(other);
  }
  if (!by_name.empty()) return by_name;
  for (const std::string_view kind : kPresetKinds)
    for (const auto& known : preset_names(presets, kind)) {
      const fs::path path = presets / kind / (known + ".json");
      const Json content = content_or_nothing(path);
      for (const auto& alias : content.value("aliases", Json::array())) {
        if (!alias.is_string()) continue;
        all.push_back(alias.get<std::string>());
        if (lower_case(all.back()) == wanted) by_alias.push_back({std::string(kind), known, path});
      }
    }
  if (!by_alias.empty()) return by_alias;
  std::string near = closest(name, all);
  if (near.empty()) near = names_around(name, all);
  throw UsageError(to_string(Problem{"show", "", name, "the name of a preset", ""}) + "\n  " +
                   (near.empty() ? "sextant presets lists them" : fmt::format("did you mean {}?", near)));
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// What a model's file does not state, but says. Nothing where it is no whole model.
std::optional<std::int64_t> parameters_of(const Found& found, const fs::path& presets) {
  if (found.kind != "models") return std::nullopt;
  try {
    return parameter_counts(load_model(found.name, presets)).total;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

Json to_json(const PresetValue& v) {
  Json out = {{"key", v.key}, {"value", Json::parse(v.value)}};
  if (!v.low.empty()) out["low"] = Json::parse(v.low);
  if (!v.high.empty()) out["high"] = Json::parse(v.high);
  for (const auto& [name, text] : {std::pair{"unit", &v.unit},
                                   {"meaning", &v.meaning},
                                   {"origin", &v.origin},
                                   {"source", &v.source},
                                   {"date", &v.date},
                                   {"of", &v.of}})
    if (!text->empty()) out[name] = *text;
  return out;
}

ExitCode show_json(Session& session, const fs::path& presets, const std::vector<Found>& found) {
  Json files = Json::array();
  for (const Found& f : found) {
    Json values = Json::array();
    for (const PresetValue& v : preset_values(presets, f.path)) values.push_back(to_json(v));
    files.push_back({{"kind", f.kind},
                     {"name", f.name},
                     {"path", f.path.string()},
                     {"content", content_or_nothing(f.path)},
                     {"values", values}});
    if (const auto parameters = parameters_of(f, presets)) files.back()["parameters"] = *parameters;
  }
  print_json(session, "presets.show", {{"presets", files}});
  return ExitCode::ok;
}

// Texts that would make the table as wide as they are long.
bool stands_above(const PresetValue& v) {
  constexpr std::size_t kLong = 40;
  return v.value.starts_with('"') && v.value.size() > kLong && v.key.find_first_of(".[") == std::string::npos;
}

void show_one(Session& session, const fs::path& presets, const Found& found) {
  auto& out = session.terminal.out;
  print_wrapped(out, session.terminal,
                fmt::format("{} of {}: {}", found.name, found.kind, found.path.string()));
  const std::vector<PresetValue> values = preset_values(presets, found.path);
  for (const PresetValue& v : values)
    if (stands_above(v))
      print_wrapped(out, session.terminal, fmt::format("{}: {}", v.key, text_of(Json::parse(v.value))), 2);
  Table table({{"key", Align::left},
               {"value", Align::left},
               {"is", Align::left},
               {"source"},
               {"of", Align::left, 1},
               {"meaning", Align::left, 2}});
  std::vector<std::string> sources;  // many values share one
  for (const PresetValue& v : values) {
    const bool of_others =
        v.key.ends_with(".origin") || v.key.ends_with(".source") || v.key.ends_with(".date");
    if (of_others || stands_above(v)) continue;
    std::string value = text_of(Json::parse(v.value)), source = v.source, number;
    if (!v.unit.empty() && v.unit != "1" && v.number) value += " " + v.unit;
    if (!v.low.empty() && !v.high.empty()) value += fmt::format(" ({} to {})", v.low, v.high);
    if (!v.date.empty()) source += (source.empty() ? "" : ", ") + v.date;
    if (!source.empty()) {
      const auto known = std::find(sources.begin(), sources.end(), source);
      number = fmt::format("{}", known - sources.begin() + 1);
      if (known == sources.end()) sources.push_back(source);
    }
    table.add_row({v.key, value, v.origin, number, v.of, v.meaning});
  }
  if (const auto parameters = parameters_of(found, presets))
    table.add_row({"(parameters)",
                   fmt::format("{} ({:.4g} billion)", *parameters, 1e-9 * static_cast<double>(*parameters)),
                   "counted", "", "", "elements of all weights"});
  out << '\n' << table.render(session.terminal, session.common.wide) << '\n';
  for (std::size_t i = 0; i < sources.size(); ++i)
    print_wrapped(out, session.terminal, fmt::format("{}. {}", i + 1, sources[i]), 2);
  if (!sources.empty()) out << '\n';
}

ExitCode show_preset(Session& session, const fs::path& presets, const std::string& wanted) {
  const auto found = find(presets, wanted);
  if (session.common.json) return show_json(session, presets, found);
  for (const Found& one : found) show_one(session, presets, one);
  session.terminal.out << "next: override any value with --set KEY=VALUE, or copy the file and edit it\n";
  return ExitCode::ok;
}

ExitCode list(Session& session, const fs::path& presets, bool names_only,
              const std::vector<std::string>& kinds) {
  if (session.common.json) {
    Json answer = {{"folder", presets.string()}};
    for (const auto& kind : kinds) answer[kind] = preset_names(presets, kind);
    print_json(session, "presets", answer);
    return ExitCode::ok;
  }
  if (names_only) {
    for (const auto& kind : kinds)
      for (const auto& name : preset_names(presets, kind)) session.terminal.out << name << '\n';
    return ExitCode::ok;
  }
  if (kinds.size() == 1) {
    Table table({{"name", Align::left}, {"what", Align::left}, {"also known as", Align::left, 1}});
    for (const auto& name : preset_names(presets, kinds[0])) {
      const Json content = content_or_nothing(presets / kinds[0] / (name + ".json"));
      std::string what, aliases;
      for (const char* key : {"title", "about", "source", "machine"})
        if (what.empty() && content.contains(key)) what = text_of(content.at(key));
      for (const auto& alias : content.value("aliases", Json::array()))
        aliases += (aliases.empty() ? "" : ", ") + text_of(alias);
      table.add_row({name, what, aliases});
    }
    session.terminal.out << table.render(session.terminal, session.common.wide);
  } else {
    const int width = std::clamp(session.terminal.columns, 40, 100);
    for (const auto& kind : kinds) {
      const auto names = preset_names(presets, kind);
      if (names.empty()) continue;
      session.terminal.out << paint(session.terminal.color, Style::bold, kind) << '\n';
      for (const auto& line : wrap(fmt::format("{}", fmt::join(names, "  ")), width - 2))
        session.terminal.out << "  " << line << '\n';
    }
    std::vector<std::string> others;
    for (const Found& other : other_files(presets)) others.push_back(other.name);
    if (!others.empty())
      session.terminal.out << paint(session.terminal.color, Style::bold, "of the fits") << "\n  "
                           << fmt::format("{}\n", fmt::join(others, "  "));
  }
  session.terminal.out
      << "\nnext: sextant presets show NAME prints its values with meaning, unit and source\n";
  return ExitCode::ok;
}

ExitCode run(Session& session, const PresetsOptions& options) {
  const fs::path presets = session.presets();
  const auto& words = options.words;
  const std::vector<std::string> kinds(kPresetKinds.begin(), kPresetKinds.end());
  if (words.empty()) return list(session, presets, options.names, kinds);
  if (words[0] == "show") {
    if (words.size() != 2) throw UsageError("show needs the name of one preset");
    return show_preset(session, presets, words[1]);
  }
  for (const auto& word : words)
    if (std::find(kinds.begin(), kinds.end(), word) == kinds.end()) {
      auto known = kinds;
      known.emplace_back("show");
      const std::string near = closest(word, known);
      throw UsageError(fmt::format("'{}' is no kind of preset: expected {}, or show NAME{}", word,
                                   fmt::join(kinds, ", "),
                                   near.empty() ? "" : fmt::format("\n  did you mean {}?", near)));
    }
  return list(session, presets, options.names, words);
}

}  // namespace

Verb presets_verb() {
  return {.name = "presets",
          .summary = "list the built-in models, clusters, devices, fabrics and stacks",
          .description =
              "Lists what --model, --cluster and --stack know by name. With 'show NAME', prints every "
              "value of one preset: its meaning, its unit and where it comes from.",
          .examples = {{"all names", "sextant presets"},
                       {"only the models, as JSON", "sextant presets models --json"}},
          .define = [](CLI::App& app) -> Run {
            auto options = std::make_shared<PresetsOptions>();
            app.add_option("what", options->words,
                           "models, clusters, devices, fabrics, stacks or cost (default: all), or: show NAME")
                ->type_name("KIND");
            add_flag(app, {.flag = "--names", .metavar = "", .text = "bare names, one a line, for scripts"},
                     options->names);
            return [options](Session& session) { return run(session, *options); };
          }};
}

}  // namespace sextant
