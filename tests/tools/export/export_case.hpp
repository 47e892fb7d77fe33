// Plans to export: written by `sextant simulate`, exported by the command as a user does, read back as one text.
#pragma once

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"

namespace sextant::exporting {

inline std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

// A plan file of this key in the folder.
inline std::string plan_file(const TempDir& dir, const Words& question, const std::string& key,
                             const std::string& name = "plan.json") {
  const std::string path = (dir.path() / name).string();
  Words words = {"simulate", "--plan", key, "-o", path};
  words.insert(words.end(), question.begin(), question.end());
  const Called called = call(words);
  EXPECT_TRUE(std::filesystem::exists(path)) << key << '\n' << called.err;
  return path;
}

inline Called export_to(const std::string& target, const std::string& plan,
                        const std::filesystem::path& folder, const Words& more = {}) {
  Words words = {"export", plan, "--to", target, "-o", folder.string()};
  words.insert(words.end(), more.begin(), more.end());
  return call(words);
}

inline nlohmann::json exported_json(const std::string& target, const std::string& plan,
                                    const std::filesystem::path& folder, Words more = {}) {
  more.push_back("--json");
  return nlohmann::json::parse(export_to(target, plan, folder, more).out);
}

// Fields that --json lists as inexpressible.
inline std::vector<std::string> missing_fields(const nlohmann::json& answer) {
  std::vector<std::string> fields;
  for (const auto& m : answer.at("inexpressible")) fields.push_back(m.at("field"));
  return fields;
}

inline const Words k8B = {"--model", "llama-3.1-8b", "--seq-len", "4096", "--global-batch", "64"};
inline const Words k7B = {"--model", "llama-2-7b", "--global-batch", "64"};
inline Words on(const std::string& cluster, const std::string& stack, Words words = k8B) {
  words.insert(words.end(), {"--cluster", cluster, "--stack", stack});
  return words;
}

}  // namespace sextant::exporting
