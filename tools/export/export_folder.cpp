#include "tools/export/export_folder.hpp"

#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "tools/export/bash_text.hpp"
#include "tools/export/python_packages.hpp"

namespace sextant {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWrittenList = ".sextant_export";    // names of the files that an export wrote
constexpr const char* kDraft = ".sextant_export.partial";  // a folder with the files that are being written
constexpr int kParserAbsent = 77;  // exit code of check.py where the framework is not installed

std::vector<std::string> written_before(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_regular_file(folder / kWrittenList, error)) return {};
  std::istringstream lines(read_text_file(folder / kWrittenList));
  std::vector<std::string> names;
  for (std::string name; std::getline(lines, name);)
    if (!name.empty() && name.find('/') == std::string::npos && name != "..") names.push_back(name);
  return names;
}

// The text that a parser ends with is where its message stands.
std::string last_lines(const std::string& text, std::size_t most) {
  std::size_t at = text.size();
  while (at > 0 && text[at - 1] == '\n') --at;
  const std::size_t end = at;
  for (std::size_t lines = 0; at > 0; --at)
    if (text[at - 1] == '\n' && ++lines == most) break;
  return text.substr(at, end - at);
}

// All files, on the disk, where nobody takes them for an export.
void write_draft(const fs::path& draft, const std::vector<ExportFile>& files) {
  fs::remove_all(draft);
  fs::create_directory(draft);
  std::string names;
  for (const ExportFile& file : files) {
    names += file.name + "\n";
    write_file_atomic(draft / file.name, file.text);
    if (file.executable)
      fs::permissions(draft / file.name,
                      fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                      fs::perm_options::add);
  }
  write_file_atomic(draft / kWrittenList, names);
}

// Puts them in the place of an earlier export's. Where that fails nothing stays: half of one and half of another would be started.
void take_draft(const fs::path& folder, const std::vector<ExportFile>& files, std::vector<std::string> old) {
  try {
    for (const std::string& name : old) fs::remove(folder / name);
    fs::rename(folder / kDraft / kWrittenList, folder / kWrittenList);
    // What starts the job comes last.
    for (const bool executable : {false, true})
      for (const ExportFile& file : files)
        if (file.executable == executable) fs::rename(folder / kDraft / file.name, folder / file.name);
    fs::remove(folder / kDraft);
  } catch (const fs::filesystem_error& failed) {
    std::error_code ignored;
    for (const ExportFile& file : files) old.push_back(file.name);
    for (const std::string& name : old) fs::remove(folder / name, ignored);
    fs::remove_all(folder / kDraft, ignored);
    fs::remove(folder / kWrittenList, ignored);
    throw BackendError(fmt::format("{}: {}; nothing of an export is left there: export again",
                                   failed.path1().string(), failed.code().message()));
  }
}

}  // namespace

std::vector<ExportFile> export_files(const PlanFile& file, const ChosenTarget& chosen,
                                     const ExportContent& content, const LaunchOptions& options,
                                     const fs::path& presets) {
  std::vector<ExportFile> files = content.files;
  for (const auto& [preset, name] : content.copied)
    files.push_back({name, read_text_file(presets / "exports" / preset)});
  for (ExportFile& f : launch_files(file, content, options)) files.push_back(std::move(f));
  if (!content.checker.empty())
    files.push_back({"check.py", read_text_file(presets / "exports" / (content.checker + ".py"))});
  files.push_back({"plan.json", nlohmann::json(file).dump(1) + "\n"});
  files.push_back(export_readme(file, chosen, content, options));
  return files;
}

void check_export_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  if (!fs::is_directory(folder, error))
    throw ConfigError(
        Problem{"--output", "", folder.string(), "a folder", "name one that does not exist yet"});
  const std::vector<std::string> own = written_before(folder);
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name == kDraft) continue;
    if (!own.empty() && (name == kWrittenList || name == "__pycache__")) continue;
    if (std::find(own.begin(), own.end(), name) == own.end())
      throw ConfigError(Problem{"--output", "", folder.string(),
                                "a new folder, an empty one, or one of an earlier export",
                                fmt::format("it holds {}, which no export wrote", name)});
  }
  if (error)
    throw ConfigError(Problem{"--output", "", folder.string(), "a folder that can be read", error.message()});
}

void write_export(const fs::path& folder, const std::vector<ExportFile>& files) {
  check_export_folder(folder);
  std::error_code error;
  std::vector<std::string> old = written_before(folder);
  const bool made = fs::create_directories(folder, error);
  if (error)
    throw ConfigError(Problem{"--output", "", folder.string(), "a folder that can be made", error.message()});
  try {
    write_draft(folder / kDraft, files);
  } catch (...) {
    fs::remove_all(folder / kDraft, error);
    if (made) fs::remove(folder, error);
    throw;
  }
  take_draft(folder, files, std::move(old));
}

ParserAnswer ask_parser(const fs::path& folder) {
  const auto [code, text] = ask_command(fmt::format(
      "cd {} && {} check.py", bash_word(fs::absolute(folder).string()), bash_word(python_asked())));
  ParserAnswer answer;
  answer.outcome = code == 0               ? ParserAnswer::accepted
                   : code == kParserAbsent ? ParserAnswer::absent
                                           : ParserAnswer::refused;
  answer.text = last_lines(text, answer.outcome == ParserAnswer::refused ? 12 : 1);
  return answer;
}

}  // namespace sextant
