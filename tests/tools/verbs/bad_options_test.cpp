// Words and numbers of the command line that say nothing lawful.
#include "tests/tools/verbs/bad_input.hpp"

namespace sextant {
namespace {

using namespace bad_input;

TEST_F(BadInput, Settings) {
  const std::vector<std::pair<std::string, Words>> cases = {
      {"fabric.bandwidth_GBps", {"KEY=VALUE"}},
      {"=5", {"KEY=VALUE"}},
      {"training.gradient", {"training.gradient: found no value, expected KEY=VALUE"}},
      {"fabric.bandwidth_GBps=", {"fabric.bandwidth_GBps: found \"\""}},
      {"fabric.bandwidth_GBps=nan", {"fabric.bandwidth_GBps: found \"nan\", expected a finite number"}},
      {"fabric.bandwidth_GBps=1e400", {"fabric.bandwidth_GBps", "a finite number"}},
      {"fabric.bandwidth_GBps=-1", {"found -1, expected a number from 0"}},
      {"fabric.bandwith_GBps=1", {"fabric.bandwith_GBps", "did you mean bandwidth_GBps?"}},
      {"fabrik.bandwidth_GBps=1", {"fabrik", "did you mean fabric?"}},
      {"fabric=1", {"fabric: found 1, expected an object"}},
      {"node={}", {"node.gpus", "is missing"}},
      {"nodes.count=1", {"nodes has no fields"}},
      {"defects[1].node=0", {"defects[1]", "an index up to 0", "the list has 0 items"}},
      {"defects[0].node=9", {"defects[0].node: found 9, expected a node from 0 to 0"}},
      {"defects[x].node=0", {"an index such as [0]"}},
      {"defects[0].nod=0", {"defects[0].nod", "did you mean node?"}},
      {"fabric.=1", {"a name is missing"}},
      {".=1", {"a name is missing"}},
      {"device.peak_TFLOPS.bf17=300", {"device.peak_TFLOPS.bf17", "did you mean bf16?"}},
      {"model.n_layers=0", {"model.n_layers: found 0"}},
      {"model.n_layer=1", {"model.n_layer", "did you mean n_layers?"}},
      {"training.global_batch=0", {"training.global_batch: found 0"}},
      {"training.stack=torchtitan", {"training.stack: found torchtitan", "--stack NAME"}},
      {"stack.can.zero_stages[0]=7",
       {"stack.can.zero_stages[0]: found 7, expected a whole number from 0 to 3"}},
      {"stack.kernels.norm_bytes=-1", {"stack.kernels.norm_bytes: found -1"}},
      {"name=\x1b[2J", {"without control characters"}},
  };
  for (const auto& [setting, told] : cases) {
    usage(with({"--set", setting}), told + Words{"--set"});
    usage(search({"--set", setting}), told + Words{"--set"});
    usage(Words{"explain"} + kModel + kCluster + Words{"--set", setting}, told + Words{"--set"});
  }
  std::string deep = "a";
  for (int i = 0; i < 5000; ++i) deep += ".a";
  usage(with({"--set", deep + "=1"}), {"at most 16"});
}

TEST_F(BadInput, SettingsReachListsAndAbsentFields) {
  const auto good = call(with({"--set", "nodes=2", "--set", "defects[0].node=1", "--set",
                               "defects[0].compute_factor=0.5", "--set", "device.price_usd_per_hour=2",
                               "--set", "stack.can.zero_stages[1]=1", "-o", "set.json"}));
  ASSERT_EQ(good.code, ExitCode::ok) << good.err;
  const json made = json::parse(text_of("set.json"));
  EXPECT_EQ(made["cluster"]["defects"][0]["node"], 1);
  EXPECT_EQ(made["cluster"]["defects"][0]["compute_factor"], 0.5);
  EXPECT_EQ(made["cluster"]["device"]["price_usd_per_hour"], 2);
}

TEST_F(BadInput, NamesOfPresetsThatDoNotExist) {
  usage(with_model("llama-2-13"), {"--model: found 'llama-2-13'", "did you mean llama-2-13b?"});
  usage(with_model("chinchilla"), {"--model", "sextant presets lists them"});
  usage(with_model("a\nb\x1b[31m"), {"--model", "a\\nb?[31m"});
  usage(with_cluster("8x8xh1000"), {"--cluster: found \"8x8xh1000\"", "did you mean 8x8xh100?"});
  usage(with_cluster("8x8xh100@ndr-8x40"), {"--cluster: fabric", "did you mean ndr-8x400?"});
  usage(with_cluster("8x8xh100@"), {"a fabric preset after @"});
  usage(with_cluster("8x8"), {"the device is missing"});
  usage(with_cluster("0x8xh100"), {"found 0, expected a number of nodes from 1 to 131072"});
  usage(with_cluster("99999999999999999999x8xh100"), {"a number of nodes from 1 to 131072"});
  usage(with_cluster("1x99999xh100"), {"found 99999, expected GPUs of a node from 1 to 1024"});
  usage(with_cluster("9999999xh100"), {"found 9999999, expected a number of GPUs from 1 to 1048576"});
  usage(with_cluster("9xh100"), {"full nodes of 8 GPUs", "8xh100 or 16xh100"});
  usage(with_cluster("8x8xcpu"), {"a network between 8 nodes"});
  usage(with_stack("megatron-cor"), {"--stack: stack: found megatron-cor", "did you mean megatron-core?"});
  usage({"presets", "show", "lama-2-13b"}, {"found lama-2-13b", "did you mean llama-2-13b?"});
  usage({"presets", "show", "../../passwd"},
        {"sextant presets: show: found ../../passwd", "the name of a preset"});
  usage({"presets", "show", "a\x1b[31m"}, {"show: found a?[31m"});
  usage({"presets", "--presets", "absent"}, {"--presets: found absent, expected a folder"});
  usage({"presets", "--presets", "plan.json"}, {"--presets: found plan.json, expected a folder"});
  usage(with({"--presets", "folder"}),
        {"--presets: found folder, expected a folder with models/, clusters/"});
}

TEST_F(BadInput, Numbers) {
  for (const std::string number :
       {"0", "-1", "1.5", "nan", "inf", "1e9", "99999999999999", "abc", "4k", " 1"}) {
    usage(with({"--seq-len", number}), {"--seq-len: found " + number, "a whole number (tokens) from 1 to"});
    usage(with({"--global-batch", number}), {"--global-batch: found " + number, "(sequences) from 1 to"});
    usage(search({"--top", number}), {"--top: found " + number});
  }
  for (const std::string number : {"-1", "nan", "inf", "1e9", "abc"}) {
    usage(search({"--budget-s", number}), {"--budget-s: found " + number, "(seconds) from 0 to"});
    usage({"validate", "runs.csv", "--max-error", number}, {"--max-error: found " + number});
  }
  usage(search({"--budget-s=", "--json"}), {"--budget-s needs a value"});
  usage(with({"--stack", ""}), {"--stack: found nothing, expected STACK"});
  usage(with({"-o", ""}), {"--output: found nothing, expected FILE"});
}

TEST_F(BadInput, Layouts) {
  const std::vector<std::pair<std::string, Words>> keys = {
      {"tp0", {"found 'tp0', expected tp and a whole number from 1"}},
      {"tp99999999999", {"found 'tp99999999999'"}},
      {"tp1.tp2", {"found 'tp2', expected tp only once"}},
      {"tp2..pp2", {"found an empty part"}},
      {"tp2.xx3", {"the unknown part 'xx3'"}},
      {"tp4.selx", {"did you mean sel?"}},
      {"tp2.pp2.dp2.sd3.z1", {"shard_degree: found 3, expected a divisor of"}},
      {"tp2.pp2.dp2.z1.mbs3", {"micro_batch * dp: found 6, expected a divisor of"}},
      {"tp3.dp2", {"--plan"}},
      {std::string(1 << 20, 'x'), {"a very long text"}},
  };
  for (const auto& [key, told] : keys) usage(with_plan(key), told + Words{"--plan"});
  usage(Words{"explain"} + kModel + kCluster + Words{"--why", "tp0"}, {"--why", "found 'tp0'"});
  usage(Words{"explain"} + kModel + kCluster + Words{"--why", ""}, {"--why", "plan key: found nothing"});
  const std::vector<std::pair<std::string, Words>> limits = {
      {"tp=0", {"tp: found 0, expected a whole number from 1"}},
      {"tp=nan", {"tp: found nan"}},
      {"tpp=4", {"found tpp", "did you mean tp?"}},
      {"tp", {"field=value"}},
      {"tp=4,,pp=2", {"found nothing"}},
      {"tp=4,tp=2", {"tp: found tp=4,tp=2, expected limits that some value satisfies"}},
      {"rec=some", {"rec: found some, expected one of none, sel, full"}},
      {"tp<=2", {"--limit 'tp<=2' narrows"}},
  };
  for (const auto& [fix, told] : limits) usage(search({"--fix", fix}), told + Words{"--fix"});
  usage(search({"--fix", "tp=4", "--limit", "tp<=2"}), {"limits that some value satisfies"});
  // Lawful words, but not on this cluster: no mistake of the command line, there is just no such layout.
  refused(with_plan("tp2.pp2.dp4.z1.mbs1"), ExitCode::no_feasible_plan, {"needs 16 GPUs, the cluster has 8"});
  const std::vector<std::pair<std::string, std::string>> pins = {
      {"tp=3", "tp is 3, expected a divisor of the 8 GPUs"},
      {"mbs=3", "mbs is 3, expected a divisor of the 1024 sequences"},
      {"dp=3", "no divisor of the 8 GPUs is a dp within the limits"},
      {"tp=4,pp=4", "tp * cp * pp is at least 16, and there are 8 GPUs"},
      {"dp=8,mbs=256", "mbs * dp is 2048, expected a divisor of the 1024 sequences"},
  };
  for (const auto& [fix, cause] : pins) {
    const auto question = search({"--fix", fix});
    refused(question, ExitCode::no_feasible_plan,
            {"no layout is possible", "not divisible", "without " + fix, "no layout within " + fix});
    std::string text = call(question).err;  // lines may be broken inside the cause
    for (std::size_t at; (at = text.find("\n    ")) != text.npos;) text.replace(at, 5, " ");
    EXPECT_NE(text.find(cause), text.npos) << text;
  }
}

// A table of positions that ends before the sequence does is neither a matter of memory nor of dividing.
TEST_F(BadInput, SequencesLongerThanTheTableOfPositions) {
  const Words told = {"--seq-len: found 4096, expected at most 2048", "positions of gpt3-13b",
                      "--set model.max_positions=4096"};
  const Words question = {"--model", "gpt3-13b", "--cluster", "1x8xa100-80gb", "--seq-len", "4096"};
  usage(Words{"plan"} + question, told);
  usage(Words{"simulate"} + question + kPlan, told);
  const auto longer = call(Words{"simulate"} + question + kPlan + Words{"--set", "model.max_positions=4096"});
  EXPECT_EQ(longer.err, "");
  EXPECT_NE(longer.out.find("sequences of 4096 tokens"), std::string::npos) << longer.out;
}

TEST_F(BadInput, APlanFileNeedsNoSuffix) {
  fs::copy_file("plan.json", "kept");
  const auto outcome = call(simulate({"--plan", "kept"}));
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  EXPECT_EQ(outcome.out, call(simulate({"--plan", "plan.json"})).out);
  usage(simulate({"--plan", "not-kept"}), {"--plan: plan key not-kept: found the unknown part"});
  write("tp2.dp4.z1", std::string("a key comes before a file of its name"));
  EXPECT_EQ(call(with_plan("tp2.dp4.z1")).err, "");
}

TEST_F(BadInput, WordsOfTheCommandLine) {
  usage({"simulat"}, {"did you mean 'sextant simulate'?"});
  usage(with({"--tracee", "x"}), {"no option --tracee", "did you mean --trace?"});
  usage(with({"--model", "llama-2-7b"}), {"--model is given more than once"});
  usage(simulate({}), {"--plan is missing"});
  usage({"plan"}, {"--model is missing"});
  usage({"plan", "--model", "llama-2-7b"}, {"--cluster is missing"});
  usage({"validate"}, {"RUNS.csv is missing"});
  usage({"presets", "show"}, {"show needs the name of one preset"});
  usage({"presets", "modles"}, {"did you mean models?"});
  usage({"doctor", "now"}, {"unexpected argument 'now'"});
  usage({"completion", "tcsh"}, {"sextant completion: shell: found tcsh, expected one of bash, zsh, fish"});
  usage(simulate({"plan.json", "--plan", "tp1"}), {"the layout is given twice"});
  usage({"doctor", "--color", "red"}, {"--color: found red"});
}

}  // namespace
}  // namespace sextant
