#include "core/base/preset_path.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "core/base/words.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (c != '-' && c != '_' && c != ' ') out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

// As nvidia-smi and torch name a device: "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB". `name` is plain.
std::string without_brand(std::string name) {
  for (const std::string_view brand : {"nvidia", "tesla"})
    if (name.starts_with(brand) && name.size() > brand.size()) name.erase(0, brand.size());
  return name;
}

std::vector<fs::path> files_of(const fs::path& presets, std::string_view kind) {
  std::vector<fs::path> files;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(presets / kind, none))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

struct Name {
  std::string text;  // in its own spelling
  fs::path file;
};

std::vector<Name> aliases_of(const std::vector<fs::path>& files) {
  std::vector<Name> names;
  for (const auto& file : files) {
    const std::string text = read_text_file(file);
    if (text.find("\"aliases\"") == text.npos) continue;  // of most files no more is needed
    const auto content = parse_json(text, file.string());
    if (content.is_object() && content.contains("aliases"))
      for (const auto& alias : content["aliases"])
        if (alias.is_string()) names.push_back({alias.get<std::string>(), file});
  }
  return names;
}

}  // namespace

std::optional<fs::path> find_preset(const fs::path& presets, std::string_view kind, std::string_view name) {
  const auto files = files_of(presets, kind);
  const std::string asked = without_brand(plain(name));
  for (const auto& file : files)
    if (plain(file.stem().string()) == asked) return file;
  std::optional<Name> found;
  for (const auto& alias : aliases_of(files)) {
    if (plain(alias.text) != asked) continue;
    if (found && found->file != alias.file)
      throw ConfigError(Problem{alias.file.string(), "aliases", fmt::format("\"{}\"", alias.text),
                                "a name of its own",
                                fmt::format("{} has it too: take it out of one", found->file.string())});
    found = alias;
  }
  if (found) return found->file;
  // "OLMo-2-1124-7B": a name of the hub without its owner.
  for (const auto& alias : aliases_of(files))
    if (const auto owner = alias.text.find('/');
        owner != std::string::npos && plain(alias.text.substr(owner + 1)) == asked)
      return alias.file;
  return std::nullopt;
}

std::string names_around(const std::string& word, const std::vector<std::string>& names) {
  constexpr std::size_t kShortest = 3, kMost = 8;
  const std::string part = plain(word);
  std::vector<std::string> found;
  for (const auto& name : names)
    if (part.size() >= kShortest && plain(name).find(part) != std::string::npos) found.push_back(name);
  if (found.size() > kMost) {
    const std::size_t others = found.size() - kMost;
    found.resize(kMost);
    return fmt::format("{}, or another of {} more (sextant presets)", fmt::join(found, ", "), others);
  }
  return any_of_words(found);
}

namespace {

// The first words of a name, "megatron-lm" of "megatron-lm-2024": what people know of one, with a slip or two.
std::string nearest_beginning(const std::string& word, const std::vector<std::string>& names) {
  constexpr std::size_t kShortest = 4;
  if (word.size() < kShortest) return "";
  std::vector<std::string> beginnings;
  for (const std::string& name : names)
    for (std::size_t end = name.find('-'); end != std::string::npos; end = name.find('-', end + 1))
      if (std::string begins = plain(name.substr(0, end)); begins.size() >= kShortest)
        beginnings.push_back(std::move(begins));
  const std::string near = closest(word, beginnings);
  std::vector<std::string> begun;
  for (const std::string& name : names)
    if (!near.empty() && plain(name).starts_with(near)) begun.push_back(name);
  return names_around(near, begun);
}

}  // namespace

std::string nearest_preset(const fs::path& presets, std::initializer_list<std::string_view> kinds,
                           std::string_view name) {
  std::vector<std::string> names, plain_names;
  for (const std::string_view kind : kinds) {
    const auto files = files_of(presets, kind);
    for (const auto& file : files) names.push_back(file.stem().string());
    for (const auto& alias : aliases_of(files)) names.push_back(alias.text);
  }
  for (const auto& n : names) plain_names.push_back(plain(n));
  const std::string near = closest(plain(name), plain_names);
  if (near.empty()) {
    std::string around = names_around(std::string(name), names);
    return around.empty() ? nearest_beginning(plain(name), names) : around;
  }
  const auto at = std::find(plain_names.begin(), plain_names.end(), near);
  return near.empty() ? "" : names[static_cast<std::size_t>(at - plain_names.begin())];
}

std::vector<std::string> preset_names(const fs::path& presets, std::string_view kind) {
  std::vector<std::string> names;
  for (const auto& file : files_of(presets, kind)) names.push_back(file.stem().string());
  return names;
}

}  // namespace sextant
