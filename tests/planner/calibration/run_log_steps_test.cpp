// Which steps of a log are measurements, and what is refused by its line.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/model/model_files.hpp"
#include "planner/calibration/run_log.hpp"
#include "tests/planner/calibration/megatron_log.hpp"
#include "tests/support/measured.hpp"

namespace sextant {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_run_log(text, "x.log");
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(RunLog, StepsOfNoTimeAndSecondRunsAreRefusedByLine) {
  std::string zero = kMegatron;
  zero.replace(zero.find("30000.0"), 7, "0.0");
  EXPECT_NE(refusal(zero).find("x.log:23"), std::string::npos) << refusal(zero);
  EXPECT_NE(refusal("step: 1 loss: 1 tps: 0\n").find("x.log:1"), std::string::npos);
  // Another layout behind the first run's steps; the same one again is a run that went on.
  std::string other = kMegatron;
  const std::string tp = "tensor_model_parallel_size ...................... ";
  other.replace(other.find(tp), tp.size() + 1, tp + "4");
  const std::string mixed = refusal(kMegatron + other);
  EXPECT_NE(mixed.find("x.log:42"), std::string::npos) << mixed;
  EXPECT_NE(mixed.find("tp"), std::string::npos) << mixed;
  EXPECT_EQ(refusal(std::string(kMegatron) + kMegatron), "");
  std::string growing = kMegatron;
  growing.replace(growing.rfind("global batch size:  1024"), 24, "global batch size:  2048");
  EXPECT_NE(refusal(growing).find("global_batch"), std::string::npos) << refusal(growing);
}

// A Megatron-LM log of these step times in ms, as printed; the first warms up.
std::string steps_of(const std::vector<std::string>& ms, int first = 1) {
  std::string text = "------------------------ arguments ------------------------\n";
  for (const std::string& one : ms)
    text += fmt::format(
        " iteration {:8}/     100 | elapsed time per iteration (ms): {} | global batch size: 64 |\n", first++,
        one);
  return text;
}

double steady(const std::string& text) {
  return steady_step(parse_run_log(text, "x.log"), TrainingSpec{}, ParallelPlan{}).v;
}

std::string steady_refusal(const std::string& text) {
  try {
    steady(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(RunLog, TheFirstStepOfARunIsNeverTheMeasurement) {
  EXPECT_DOUBLE_EQ(steady(steps_of({"60000", "30000"})), 30);
  EXPECT_DOUBLE_EQ(steady(steps_of({"60000", "30000", "31000"})), 31);
  EXPECT_DOUBLE_EQ(steady(steps_of({"nan", "30000"})), 30);  // the first is the first, read or not
  // A run that goes on behind it warms up again, with its arguments or without; so do all ranks of one step.
  EXPECT_DOUBLE_EQ(steady(steps_of({"60000", "30000"}) + steps_of({"90000"}, 3)), 30);
  const std::string again = steps_of({"90000"}, 1);
  EXPECT_DOUBLE_EQ(steady(steps_of({"60000", "30000"}) + again.substr(again.find('\n') + 1)), 30);
  const std::string rank = "step: 1 loss: 9 memory: 1.00GiB(1%) tps: 10 mfu: 1%\n";
  const RunLog ranks = parse_run_log(rank + rank + rank +
                                         "step: 10 loss: 8 memory: 1.00GiB(1%) tps: 40 mfu: 1%\n"
                                         "validate step: 10 loss: 8 memory: 1.00GiB(1%) tps: 9000\n",
                                     "titan.log");
  TrainingSpec training;
  training.global_batch = 1;
  training.seq_len = 400;
  EXPECT_DOUBLE_EQ(steady_step(ranks, training, ParallelPlan{}).v, 10);
  for (const std::string& none :
       {steps_of({"60000"}), steps_of({"60000", "nan"}), steps_of({"60000"}) + again})
    for (const char* said : {"x.log:2", "warms up", "at least one step behind it", "log more steps"})
      EXPECT_NE(steady_refusal(none).find(said), std::string::npos) << none << steady_refusal(none);
}

TEST(RunLog, WhatCannotBeReadIsNamedByItsLineAndLeftOut) {
  const auto unread = [](const std::string& text) {
    std::string said;
    for (const Problem& p : parse_run_log(text, "x.log").unread) said += to_string(p) + '\n';
    return said;
  };
  const std::string sound = steps_of({"60000", "30000", "31000"});
  EXPECT_EQ(unread(sound), "");
  const std::string nan = steps_of({"60000", "nan", "31000"});
  for (const char* said : {"x.log:3", "found nan", "milliseconds above 0", "left out"})
    EXPECT_NE(unread(nan).find(said), std::string::npos) << unread(nan);
  EXPECT_DOUBLE_EQ(steady(nan), 31);
  // A log that ends inside a line, in a number that would be a time as well: 31000 ms cut to 31.
  const std::string cut = sound.substr(0, sound.find("31000") + 2);
  EXPECT_NE(unread(cut).find("x.log:4"), std::string::npos) << unread(cut);
  EXPECT_DOUBLE_EQ(steady(cut), 30);
  EXPECT_NE(
      unread(sound.substr(0, sound.find("/     100 | elapsed", sound.find("30000")) + 12)).find("x.log:4"),
      std::string::npos);
  EXPECT_DOUBLE_EQ(steady(sound.substr(0, sound.size() - 1)), 31);  // cut behind the number: it counts
  const std::string none = refusal(steps_of({"nan", "inf"}));
  for (const char* said : {"x.log:2", "found nan", "log more of them"})
    EXPECT_NE(none.find(said), std::string::npos) << none;
}

// What is said when a log of this line is applied to a preset's model; nothing where they agree.
std::string of_model(const char* preset, const std::string& line, const std::string& steps, int tp = 1,
                     int pp = 1) {
  ModelSpec model = load_model(preset, test::preset_dir());
  TrainingSpec training;
  ParallelPlan plan;
  plan.tp = tp;
  plan.pp = pp;
  try {
    apply_log(parse_run_log(line + "\n" + steps, "x.log"), model, training, plan, {.plan = true});
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(RunLog, ALogOfAnotherModelIsRefused) {
  const std::string titan = "step: 1 loss: 9 tps: 10 mfu: 1%\n",
                    nanotron_steps = "iteration: 5 / 20 | elapsed_time_per_iteration_ms: 11.5K | \n",
                    megatron = steps_of({"60000"});
  const auto refused = [](const std::string& said) {
    for (const char* part : {"x.log:1: parameters", "--model names"})
      EXPECT_NE(said.find(part), std::string::npos) << said;
    return !said.empty();
  };
  const std::string size = "Model llama3 8B size: 8,030,261,248 total parameters";
  EXPECT_EQ(of_model("llama-3-8b", size, titan), "");
  EXPECT_TRUE(refused(of_model("llama-2-13b", size, titan)));
  EXPECT_TRUE(refused(of_model("llama-2-7b", size, titan)));
  const std::string said = of_model("llama-2-13b", size, titan);
  for (const char* part : {"8.03 billion", "13.02 billion, which llama-2-13b has"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
  // Tied or not, and rows that make a vocabulary a multiple of something, are the same model.
  const std::int64_t matrix = 128256LL * 2048, tied = 1'235'814'400;
  const auto total = [](std::int64_t n) { return fmt::format("size: {} total parameters", n); };
  for (const std::int64_t n : {tied, tied + matrix, tied + 100 * 2048})
    EXPECT_EQ(of_model("llama-3.2-1b", total(n), titan), "") << n;
  for (const std::int64_t n : {tied + matrix / 2, tied - matrix, tied + 2 * matrix})
    EXPECT_TRUE(refused(of_model("llama-3.2-1b", total(n), titan))) << n;
  // Printed with three digits, or in billions with two decimals.
  EXPECT_EQ(of_model("llama-2-13b", "Total number of parameters: 13G (24826.17MiB)", nanotron_steps), "");
  EXPECT_TRUE(refused(of_model("llama-2-7b", "Total number of parameters: 13G (1MiB)", nanotron_steps)));
  EXPECT_EQ(of_model("llama-3-8b", "Total number of parameters: 8.03B (15316.5MiB)", nanotron_steps), "");
  EXPECT_TRUE(refused(of_model("llama-2-13b", "Total number of parameters: 8.03B", nanotron_steps)));
  EXPECT_EQ(of_model("llama-2-13b", "Total number of parameters in billions: 13.02", megatron), "");
  EXPECT_TRUE(refused(of_model("llama-3-8b", "Total number of parameters in billions: 13.02", megatron)));
}

TEST(RunLog, ParametersOfEachRankAreAddedUp) {
  const ParameterCounts c = parameter_counts(load_model("llama-2-13b", test::preset_dir()));
  const auto ranks = [](std::int64_t each, int tp, int pp) {
    std::string text;
    for (int t = 0; t < tp; ++t)
      for (int p = 0; p < pp; ++p)
        text += fmt::format(
            " > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}\n", t, p, each);
    return text;
  };
  const std::int64_t norms = 40 * c.norms + c.final_norm;
  const std::string steps = steps_of({"60000"}), four = ranks((c.total + norms) / 4, 2, 2);
  EXPECT_EQ(of_model("llama-2-13b", four, steps, 2, 2), "");
  EXPECT_NE(of_model("llama-3-8b", four, steps, 2, 2).find("parameters"), std::string::npos);
  EXPECT_EQ(of_model("llama-3-8b", four, steps, 4, 2), "");  // some ranks do not say
  // A vocabulary that the program padded to a number that it prints.
  const std::string padded =
      "  make_vocab_size_divisible_by .................... 4000\n"
      "  padded_vocab_size ............................... 40000\n" +
      ranks((c.total + norms + 2 * 8000 * 5120LL) / 2, 2, 1);
  EXPECT_EQ(of_model("llama-2-13b", padded, steps, 2, 1), "");
  EXPECT_NE(of_model("llama-2-13b", padded.substr(padded.find(" >")), steps, 2, 1), "");
}

TEST(RunLog, OtherTextIsRefused) {
  EXPECT_THROW(parse_run_log("epoch 1 loss 2.3\n", "x.log"), ConfigError);
  EXPECT_THROW(parse_run_log("", "x.log"), ConfigError);
  EXPECT_THROW(parse_run_log("elapsed time per iteration (ms): nan |", "x.log"), ConfigError);
}

}  // namespace
}  // namespace sextant
