// What a bash script would start, without running it: each case against what bash itself prints for the same words.
#include "tools/import/shell_script.hpp"

#include <array>
#include <cstdio>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.hpp"
#include "tools/import/command_flags.hpp"
#include "tools/import/integer_expression.hpp"
#include "tools/import/shell_lexer.hpp"

namespace sextant::importing {
namespace {

ShellScript read(const std::string& text, const std::string& path = "run.sh") {
  return read_shell_script(text, path, [](const std::string& name) {
    return name == "FROM_OUTSIDE" ? std::optional<std::string>("4") : std::nullopt;
  });
}

// The words that the script's last command `train` gets, each in brackets.
std::string words_read(const std::string& text) {
  std::string all;
  for (const ShellCommand& command : read(text).commands)
    if (command.words.front() == "train") {
      all.clear();
      for (std::size_t i = 1; i < command.words.size(); ++i) all += "[" + command.words[i] + "]";
    }
  return all;
}

std::string words_of_bash(const std::string& text) {
  const TempDir dir;
  const auto script = dir.write("run.sh", "train() { last=; for w in \"$@\"; do last+=\"[$w]\"; done; }\n" +
                                              text + "\nprintf %s \"$last\"\n");
  std::string out;
  FILE* pipe =
      popen(("cd " + dir.path().string() + " && FROM_OUTSIDE=4 bash run.sh 2>/dev/null").c_str(), "r");
  std::array<char, 4096> buffer{};
  while (pipe && fgets(buffer.data(), buffer.size(), pipe)) out += buffer.data();
  if (pipe) pclose(pipe);
  return out;
}

class Twins : public ::testing::TestWithParam<const char*> {};
TEST_P(Twins, WordsAreThoseOfBash) {
  EXPECT_EQ(words_read(GetParam()), words_of_bash(GetParam())) << GetParam();
}

INSTANTIATE_TEST_SUITE_P(
    Shell, Twins,
    ::testing::Values(
        "TP=4\ntrain --tp $TP --pp ${PP:-2} \"--a b\" 'c $TP' # a comment\n",
        "A=(--x 1\n  # left out\n  --y \"2 3\" # so is this\n  --z)\nA+=(--w)\ntrain ${A[@]} "
        "last\ntrain \"${A[@]}\"",
        "E=()\ntrain \"${E[@]}\" ${E[@]} \"\" end",
        "N=2\nG=8\nW=$(($N * G))\n((W += 1))\ntrain $W $((N > 1 ? 10 : 20)) $(( (N+1)**2 % 5 ))",
        "X=\" --a 1 \\\n --b 2 \"\ntrain $X \\\n  --c\ntrain \"$X\"",
        "D=fp8\nO=\"\"\nif [[ \"$D\" == \"fp8\" && 3 -gt 2 ]]; then O=\"--fp8\"; elif [ $D = x "
        "]; then O=--no; else O=--none; fi\ntrain $O",
        "if [ -z \"$Q\" ]; then Q=7; fi\n[[ $Q -eq 7 ]] && R=yes || R=no\ntrain $Q $R",
        "case llama-70B in *7B) S=7;; llama-*0B) S=70;; *) S=0;; esac\ntrain $S",
        "f() {\n local L=$1\n train \"$L\" $2 \"$#\"\n}\nf \"a b\" c",
        "for M in 1 2 4; do train $M; break; done",
        "P=/a/b/c.tar.gz\ntrain ${P##*/} ${P%.*} ${P%%.*} ${P#/a} ${P/b/x} ${#P}",
        "T=Llama\ntrain ${T,,} ${T^^} ${NONE:-a b} \"${NONE:-a b}\" ${T:+set} ${NONE:+set}",
        "train ${FROM_OUTSIDE} ${FROM_OUTSIDE:-9} $(echo 3 4) \"$(echo 3 4)\" `echo five`",
        "cmd=\"train --a 'b c' --d\"\neval $cmd", "cat > x <<EOF\n$TP ${FROM_OUTSIDE}\nEOF\ntrain after",
        "set -- one two\nshift\ntrain $1 $#",
        "V=\"a\"; export W=\"$V b\"; declare -i Z=3\ntrain \"$W\" $Z 2>&1 > log.txt",
        "A=(1 2 3)\ntrain ${A[1]} ${#A[@]} \"${A[*]}\" $A", "train a\\ b \"c\\\"d\" e\\\nf $'g h'",
        "X=${Y:=5}\ntrain $X$Y\"$X\"'$X'",
        "function g { train from g; }\ng\n(train in a group)\n{ train braces; }",
        "if (( 2 > 1 )); then train two; fi; while false; do train no; done"));

TEST(Shell, WhatIsNotKnownIsMarked) {
  const ShellScript script = read("train --mbs $MBS --nodes $(sinfo | wc -l) --path $1/x");
  ASSERT_EQ(script.commands.size(), 1U);
  const auto& words = script.commands[0].words;
  ASSERT_EQ(words.size(), 7U);
  for (const std::size_t i : {2U, 4U, 6U}) EXPECT_TRUE(has_unknown(words[i])) << i;
  EXPECT_EQ(shown_unknown(words[2]), "$MBS");
  EXPECT_EQ(shown_unknown(words[4]), "$(sinfo | wc -l)");
  EXPECT_EQ(without_unknown(words[6]), "/x");
}

TEST(Shell, ConditionsAndLoopsThatCannotBeFollowedAreNamed) {
  const ShellScript script = read(
      "if nvidia-smi | grep -q H100; then TP=8; fi\nfor M in 1 2; do\ntrain --mbs $M\ndone\nsource "
      "none.sh\n");
  ASSERT_EQ(script.notes.size(), 3U);
  EXPECT_NE(script.notes[0].find("line 1: the condition nvidia-smi | grep -q H100"), std::string::npos)
      << script.notes[0];
  EXPECT_NE(script.notes[1].find("M=1"), std::string::npos) << script.notes[1];
  EXPECT_NE(script.notes[2].find("none.sh could not be read"), std::string::npos) << script.notes[2];
}

TEST(Shell, SourcedFilesAndSlurmLines) {
  const TempDir dir;
  dir.write("conf/model.sh", "ARGS=(--num-layers 32)\n");
  const auto file = dir.write("run.sh",
                              "#!/bin/bash\n#SBATCH --nodes=4 --gpus-per-node=8\nsource \"$(dirname "
                              "\"$0\")/conf/model.sh\"\nsource conf/model.sh\ntrain ${ARGS[@]}");
  const ShellScript script =
      read("#SBATCH --nodes=4 --gpus-per-node=8\nsource conf/model.sh\nsrun train.py \"${ARGS[@]}\"", file);
  EXPECT_EQ(script.slurm, (std::vector<std::string>{"--nodes=4", "--gpus-per-node=8"}));
  const CommandFlags flags = training_command(script);
  EXPECT_EQ(flags.options.at("--num-layers"), std::vector<std::string>{"32"});
  EXPECT_EQ(flags.gpus, 32);
}

TEST(Shell, SbatchStatesTheNodes) {
  const ShellScript script = read(
      "N=4\nARGS=\"--num-layers 2 --hidden-size 8 --x 1\"\nsbatch -p gpu --nodes=$N --gpus-per-node=8 "
      "job.sh\n");
  EXPECT_TRUE(script.commands.empty());
  const CommandFlags flags = training_command(script);
  EXPECT_EQ(flags.options.at("--hidden-size"), std::vector<std::string>{"8"});
  EXPECT_EQ(flags.gpus, 32);
}

TEST(Shell, LaunchersSayHowManyRanksTheyStart) {
  const auto gpus = [](const std::string& text) { return training_command(read(text)).gpus; };
  EXPECT_EQ(gpus("torchrun --nproc_per_node 8 --nnodes=2 pretrain_gpt.py --num-layers 2 --x"), 16);
  EXPECT_EQ(gpus("python -m torch.distributed.launch --nproc-per-node=4 x/pretrain_gpt.py --num-layers 2"),
            4);
  EXPECT_EQ(gpus("deepspeed --num_nodes 2 --num_gpus 4 train.py --num-layers 2"), 8);
  EXPECT_EQ(gpus("mpirun -np 24 python train.py --num-layers 2"), 24);
  EXPECT_EQ(gpus("accelerate launch --num_processes 16 --num_machines 2 train.py --x 1 --y"), 16);
  EXPECT_EQ(gpus("torchrun --nproc_per_node $N pretrain_gpt.py --num-layers 2"), std::nullopt);
  EXPECT_EQ(gpus("python train.py --num-layers 2"), std::nullopt);
}

TEST(Shell, AnyBytesEnd) {  // and in bounded time and depth
  std::string deep = "train ";
  for (int i = 0; i < 20000; ++i) deep += "\"$(";
  read(deep);
  std::string nested;
  for (int i = 0; i < 5000; ++i) nested += "if ((1)); then ( { ";
  read(nested);
  read("f() { f; f; }\nf");
  read("A=1\n" + std::string(100, ' ') + "for i in 1 2; do for j in 1 2; do A=$A$A$A$A; done; done; case");
  for (const char* text :
       {"<<",  "$(", "${", "a=(", "((", "case x in", "if", "for",    "for x in", "function",
        "f()", "[[", "\"", "'",   "\\", ")",         "}",  "<<E\nx", "${a[",     "${a:"})
    read(text);
  SUCCEED();
}

// A few lines that call each other, or double a value, again and again: followed for so long and no longer, and that is said.
TEST(Shell, WhatHasNoEndIsNotFollowedThere) {
  const auto repeated = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  const std::string last = "\ntrain --last\n";
  const auto cut = [](const ShellScript& script) {
    return !script.notes.empty() && script.notes.back().starts_with("it does more than is followed");
  };
  for (const std::string& endless :
       {"f() { " + repeated("f; ", 20) + "}\nf", "A='" + repeated("eval \"$A\"; ", 20) + "'\neval \"$A\"",
        "A=(1 2)\n" + repeated("A+=(\"${A[@]}\" \"${A[@]}\")\n", 60),
        "A=" + repeated("x", 4000) + "\n" + repeated("B=${A%%y*}\n", 100),
        "A=" + repeated("x", 9000) + "\ncase $A in " + repeated("*$A*y) B=1;; ", 10) + "esac"}) {
    const ShellScript script = read(endless + last);
    EXPECT_TRUE(cut(script)) << endless.substr(0, 80);
    EXPECT_TRUE(script.commands.empty()) << endless.substr(0, 80);
  }
  for (const std::string& ends :
       {"f() { echo $1; }\n" + repeated("f a\n", 2000), repeated("A+=(--x 1)\n", 2000),
        "A=/data/" + repeated("x", 200) + "\n" + repeated("B=${A##*/}\n", 200)}) {
    EXPECT_FALSE(cut(read(ends + last))) << ends.substr(0, 80);
    EXPECT_EQ(words_read(ends + last), "[--last]");
  }
}

TEST(IntegerExpression, ValuesAndRefusals) {
  const auto value = [](const std::string& text) {
    return evaluate_integer(text, [](const std::string& name) {
      return name == "x" ? std::optional<long long>(7) : std::nullopt;
    });
  };
  EXPECT_EQ(value("8 * 2048"), 16384);
  EXPECT_EQ(value("2 + 3 * 4 - -1"), 15);
  EXPECT_EQ(value("2 ** 3 ** 1 // 3"), 2);
  EXPECT_EQ(value("(x > 6 && x != 8) ? x % 4 : 0"), 3);
  EXPECT_EQ(value("${x} + $x"), 14);
  EXPECT_EQ(value("1_000"), 1000);
  for (const char* text : {"", "y", "1 +", "(1", "1 / 0", "9999999999999999999", "2 ** 70", "1.5", "1 2"})
    EXPECT_EQ(value(text), std::nullopt) << text;
}

}  // namespace
}  // namespace sextant::importing
