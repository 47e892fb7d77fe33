// Completion scripts: each shell that is installed reads them; bash completes with them.
#include "tools/verbs/completion.hpp"

#include <array>
#include <cstdio>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.hpp"
#include "tools/inputs/machine.hpp"

namespace sextant {
namespace {

std::string temporary(const std::string& text) {
  static const TempDir dir;
  return dir.write("script", text).string();
}

std::string output_of(const std::string& command) {
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 256> buffer{};
  while (pipe && fgets(buffer.data(), buffer.size(), pipe)) out += buffer.data();
  const int status = pipe ? pclose(pipe) : -1;
  return out + (status == 0 ? "" : "status " + std::to_string(status));
}

// What bash offers when TAB is pressed behind `words`.
std::string offered(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) line += " '" + word + "'";
  const std::string script =
      temporary(bash_completion(CommandLine()) + "\nCOMP_WORDS=(" + line +
                ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_sextant\necho \"${COMPREPLY[@]}\"\n");
  return output_of("bash " + script);
}

TEST(Completion, BashOffersVerbsOptionsAndChoices) {
  EXPECT_EQ(offered({"sextant", "do"}), "doctor\n");
  EXPECT_EQ(offered({"sextant", "doctor", "--co"}), "--color\n");
  EXPECT_EQ(offered({"sextant", "doctor", "--color", ""}), "auto always never\n");
  EXPECT_EQ(offered({"sextant", "completion", "z"}), "zsh\n");
  EXPECT_EQ(offered({"sextant", "doctor", "--xyz"}), "\n");
}

TEST(Completion, BashOffersFieldsAndKeys) {
  EXPECT_EQ(offered({"sextant", "plan", "--fix", "tp"}), "tp= tpo=\n");
  EXPECT_EQ(offered({"sextant", "plan", "--limit", "sched"}), "schedule=\n");
  EXPECT_EQ(offered({"sextant", "simulate", "--set", "fabric.band"}), "fabric.bandwidth_GBps=\n");
  EXPECT_EQ(offered({"sextant", "plan", "--set", "training.seq"}), "training.seq_len=\n");
  EXPECT_EQ(offered({"sextant", "presets", "sh"}), "show\n");
  // The command itself is asked for names: here one of any kind, as without a kind.
  const std::string script = bash_completion(CommandLine());
  EXPECT_NE(script.find("$before == show"), std::string::npos);
}

TEST(Completion, EveryOptionOfEveryVerbIsInEveryScript) {
  const CommandLine line;
  for (const auto& script : {bash_completion(line), zsh_completion(line), fish_completion(line)})
    for (std::size_t i = 0; i < line.apps.size(); ++i) {
      EXPECT_NE(script.find(verbs()[i].name), std::string::npos);
      for (const CLI::Option* option : line.apps[i]->get_options())
        for (const auto& name : option->get_lnames()) EXPECT_NE(script.find(name), std::string::npos) << name;
    }
}

// What fish offers when TAB is pressed behind the line, without the descriptions.
std::string offered_by_fish(const std::string& line) {
  const TempDir dir;
  const std::string completions = dir.write("sextant.fish", fish_completion(CommandLine())).string();
  const auto script =
      dir.write("ask.fish",
                "function sextant; test \"$argv\" = 'presets models --names'; and echo llama-9; "
                "end\nsource " +
                    completions + "\ncomplete -C '" + line + "'\n");
  return output_of("fish --no-config " + script.string() + " 2>&1 | cut -f1 | tr '\\n' ' '");
}

TEST(Completion, FishOffersTheSame) {
  if (!find_program("fish")) GTEST_SKIP() << "fish is not installed";
  EXPECT_EQ(offered_by_fish("sextant doc"), "doctor ");
  EXPECT_EQ(offered_by_fish("sextant doctor --co"), "--color ");
  EXPECT_EQ(offered_by_fish("sextant doctor --color a"), "always auto ");
  EXPECT_EQ(offered_by_fish("sextant plan --fix tp"), "tp= tpo= ");
  EXPECT_EQ(offered_by_fish("sextant plan --set fabric.band"), "fabric.bandwidth_GBps= ");
  EXPECT_EQ(offered_by_fish("sextant plan --model llama-"), "llama-9 ");
}

// Whether zsh, in a terminal of its own, makes `completed` of the line when TAB is pressed behind it; else what it shows.
std::string completed_by_zsh(const std::string& line, const std::string& completed) {
  const TempDir dir;
  dir.write("_sextant", zsh_completion(CommandLine()));
  const auto script = dir.write("type.zsh", R"sh(
zmodload zsh/zpty || exit 0
zpty shell zsh -f -i
read_until() {
  local all= piece
  for i in {1..1200}; do  # a minute: compinit is slow on a busy machine
    while zpty -r -t shell piece; do all+=$piece; done
    if [[ $all == *$1* ]]; then return 0; fi
    sleep 0.05
  done
  print -r -- "no $1 in: $all"
  return 1
}
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -U compinit; compinit -u -d $1/dump; unset zle_bracketed_paste"
zpty -w shell 'sextant() { [[ "$*" == "presets models --names" ]] && print llama-9; }; print rea""dy'
read_until ready || exit
zpty -w -n shell "$2"$'\t'
read_until "$3" && print -r -- "$3"
)sh");
  return output_of("zsh -f " + script.string() + " " + dir.path().string() + " '" + line + "' '" + completed +
                   "' 2>&1");
}

TEST(Completion, ZshOffersTheSame) {
  if (!find_program("zsh")) GTEST_SKIP() << "zsh is not installed";
  for (const auto& [line, completed] : std::initializer_list<std::pair<const char*, const char*>>{
           {"sextant doc", "sextant doctor"},
           {"sextant doctor --co", "--color"},
           {"sextant doctor --color al", "always"},
           {"sextant plan --set fabric.band", "fabric.bandwidth_GBps="},
           {"sextant plan --model lla", "llama-9"}})
    EXPECT_EQ(completed_by_zsh(line, completed), std::string(completed) + "\n") << line;
}

class Syntax : public ::testing::TestWithParam<const char*> {};
TEST_P(Syntax, ShellReadsItsScript) {
  const std::string shell = GetParam();
  if (!find_program(shell)) GTEST_SKIP() << shell << " is not installed";
  const CommandLine line;
  const std::string script = shell == "bash"  ? bash_completion(line)
                             : shell == "zsh" ? zsh_completion(line)
                                              : fish_completion(line);
  EXPECT_EQ(output_of(shell + " -n " + temporary(script) + " 2>&1"), "");
  EXPECT_NE(output_of(shell + " -n " + temporary(script + "\nif (\n") + " 2>&1"), "");  // negative control
}
INSTANTIATE_TEST_SUITE_P(Shells, Syntax, ::testing::Values("bash", "zsh", "fish"));

}  // namespace
}  // namespace sextant
