// Manual pages: every verb and option is in them, and man and mandoc read them without a warning.
#include "tools/verbs/man_pages.hpp"

#include <array>
#include <cstdio>
#include <set>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.hpp"
#include "tools/inputs/machine.hpp"

namespace sextant {
namespace {

std::vector<ManPage> pages() { return man_pages(CommandLine(), "0.1.0", "2026-01-02"); }

std::string shown_by(const std::string& command) {
  std::string out;
  FILE* pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  while (pipe && fgets(buffer.data(), buffer.size(), pipe)) out += buffer.data();
  if (pipe) pclose(pipe);
  return out;
}

std::string in_roff(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '-' ? std::string("\\-") : std::string(1, c);
  return out;
}

TEST(ManPages, OneForTheCommandAndOneForEachVerb) {
  std::set<std::string> files;
  for (const auto& page : pages()) files.insert(page.file);
  EXPECT_EQ(files.size(), verbs().size() + 1);
  for (const Verb& verb : verbs()) {
    EXPECT_TRUE(files.contains("sextant-" + verb.name + ".1"));
    EXPECT_NE(pages().front().text.find(in_roff("sextant-" + verb.name)), std::string::npos) << verb.name;
  }
}

TEST(ManPages, EveryOptionStandsInThePageOfItsVerbAlone) {
  const CommandLine line;
  const auto all = pages();
  for (std::size_t i = 0; i < line.apps.size(); ++i)
    for (const CLI::Option* option : line.apps[i]->get_options())
      for (const auto& name : option->get_lnames())
        if (!option->get_group().empty()) {
          EXPECT_NE(all[i + 1].text.find("\\fB\\-\\-" + in_roff(name) + "\\fR"), std::string::npos) << name;
        }
  EXPECT_EQ(all.back().file, "sextant-completion.1");  // the control: which has no model
  EXPECT_EQ(all.back().text.find("\\-\\-model"), std::string::npos);
}

TEST(ManPages, ManShowsOptionsAsTheyAreTyped) {
  if (!find_program("man")) GTEST_SKIP() << "man is not installed";
  const TempDir dir;
  for (const auto& page : pages()) {
    const auto file = dir.write(page.file, page.text).string();
    EXPECT_EQ(shown_by("LC_ALL=C.UTF-8 MANROFFOPT=-ww man -l " + file + " >/dev/null"), "") << page.file;
  }
  const std::string plan = (dir.path() / "sextant-plan.1").string();
  const std::string text = shown_by("MANWIDTH=100 LC_ALL=C.UTF-8 man -l " + plan + " | col -b");
  EXPECT_NE(text.find("--limit 'pp<=4,rec!=full' -o plan.json"), std::string::npos) << text;
  const auto bad = dir.write("bad.1", pages().front().text + ".NONE\n").string();  // negative control
  EXPECT_NE(shown_by("LC_ALL=C.UTF-8 MANROFFOPT=-ww man -l " + bad + " >/dev/null"), "");
}

TEST(ManPages, MandocFindsNothing) {
  if (!find_program("mandoc")) GTEST_SKIP() << "mandoc is not installed";
  const TempDir dir;
  for (const auto& page : pages())
    EXPECT_EQ(shown_by("mandoc -T lint -W warning " + dir.write(page.file, page.text).string()), "")
        << page.file;
  EXPECT_NE(shown_by("mandoc -T lint -W warning " + dir.write("bad.1", ".TH\n").string()),
            "");  // negative control
}

}  // namespace
}  // namespace sextant
