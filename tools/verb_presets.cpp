// `sextant presets`: what is built in (models, clusters, devices, fabrics, stacks), and every value of one of
// them with its source.
#include <algorithm>
#include <fstream>
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/preset_path.hpp"
#include "tools/planning.hpp"
#include "tools/preset_files.hpp"
#include "tools/table.hpp"
#include "tools/verbs.hpp"

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
  std::ifstream file(path);
  Json value = Json::parse(file, nullptr, false, true);
  return value.is_object() ? value : Json::object();
}

Json read_preset(const fs::path& path) {
  Json value = content_or_nothing(path);
  if (value.empty())
    throw ConfigError(Problem{
        .file = path.string(), .key = "", .value = "", .expected = "a readable JSON object", .hint = ""});
  return value;
}

// One line of a file: a value by its path, with what the file says about its origin.
struct Leaf {
  std::string key, value, origin, source;
};

// What the letters of "origin" say.
std::string meaning(const std::string& origin) {
  constexpr std::pair<std::string_view, std::string_view> kMeanings[] = {
      {"T", "measured"}, {"F", "fitted"}, {"S", "specified"}, {"D", "documented"}, {"G", "judgement"}};
  for (const auto& [letter, word] : kMeanings)
    if (origin == letter) return std::string(word);
  return origin;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A leaf is a plain value, a list, or an object {"value": ..., "unit": ..., "source": ..., "date": ...}.
void collect(const Json& node, const std::string& key, std::vector<Leaf>& leaves) {
  if (!node.is_object()) {
    leaves.push_back({key, text_of(node), "", ""});
  } else if (node.contains("value")) {
    const auto part = [&](const char* name) { return node.contains(name) ? text_of(node.at(name)) : ""; };
    std::string value = part("value"), source = part("source");
    if (node.contains("unit")) value += " " + part("unit");
    if (node.contains("low") && node.contains("high"))
      value += fmt::format(" ({} to {})", part("low"), part("high"));
    if (node.contains("date")) source += (source.empty() ? "" : ", ") + part("date");
    leaves.push_back({key, value, meaning(part("origin")), source});
  } else {
    for (const auto& [name, part] : node.items())
      collect(part, key.empty() ? name : key + "." + name, leaves);
  }
}

struct Found {
  std::string kind, name;
  fs::path path;
};

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
  const std::string near = closest(name, all);
  throw UsageError(to_string(Problem{"show", "", name, "the name of a preset", ""}) + "\n  " +
                   (near.empty() ? "sextant presets lists them" : fmt::format("did you mean {}?", near)));
}

ExitCode show(Session& session, const fs::path& presets, const std::string& wanted) {
  const auto found = find(presets, wanted);
  if (session.common.json) {
    Json files = Json::array();
    for (const auto& [kind, name, path] : found)
      files.push_back(
          {{"kind", kind}, {"name", name}, {"path", path.string()}, {"content", read_preset(path)}});
    print_json(session, "presets.show", {{"presets", files}});
    return ExitCode::ok;
  }
  for (const auto& [kind, name, path] : found) {
    std::vector<Leaf> leaves;
    collect(read_preset(path), "", leaves);
    Table table({{"key", Align::left}, {"value", Align::left}, {"is", Align::left}, {"source"}});
    std::vector<std::string> sources;  // many values share one
    for (const auto& leaf : leaves) {
      std::string number;
      if (!leaf.source.empty()) {
        const auto known = std::find(sources.begin(), sources.end(), leaf.source);
        number = fmt::format("{}", known - sources.begin() + 1);
        if (known == sources.end()) sources.push_back(leaf.source);
      }
      table.add_row({leaf.key, leaf.value, leaf.origin, number});
    }
    print_wrapped(session.terminal.out, session.terminal,
                  fmt::format("{} of {}: {}", name, kind, path.string()));
    session.terminal.out << '\n' << table.render(session.terminal, session.common.wide) << '\n';
    for (std::size_t i = 0; i < sources.size(); ++i)
      print_wrapped(session.terminal.out, session.terminal, fmt::format("{}. {}", i + 1, sources[i]), 2);
    if (!sources.empty()) session.terminal.out << '\n';
  }
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
      for (const char* key : {"title", "about", "source"})
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
  }
  session.terminal.out << "\nnext: sextant presets show NAME prints every value with its source\n";
  return ExitCode::ok;
}

ExitCode run(Session& session, const PresetsOptions& options) {
  const fs::path presets = session.presets();
  const auto& words = options.words;
  const std::vector<std::string> kinds(kPresetKinds.begin(), kPresetKinds.end());
  if (words.empty()) return list(session, presets, options.names, kinds);
  if (words[0] == "show") {
    if (words.size() != 2) throw UsageError("show needs the name of one preset");
    return show(session, presets, words[1]);
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
              "value of one preset and where it comes from.",
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
