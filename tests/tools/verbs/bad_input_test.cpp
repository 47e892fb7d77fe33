// Files that cannot be what they should be, and outputs that cannot be written.
#include "tests/tools/verbs/bad_input.hpp"

#include <array>

#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sextant {
namespace {

using namespace bad_input;

TEST_F(BadInput, TheGoodFilesAreGood) {  // else every case below would prove nothing
  for (const auto& good : {with_model("model.json"), with_cluster("cluster.json"), with_stack("stack.json"),
                           simulate({"--plan", "plan.json"}), Words{"validate", "runs.csv"}})
    EXPECT_EQ(call(good).code, ExitCode::ok) << call(good).err;
}

TEST_F(BadInput, FilesThatAreNoJson) {
  const std::string cluster = text_of("cluster.json");
  const std::vector<std::pair<std::string, std::string>> contents = {
      {"", "is empty"},
      {" \r\n\t", "is empty"},
      {cluster.substr(0, cluster.size() / 2), "truncated"},
      {cluster.substr(0, 40) + '\0' + cluster.substr(40), "a NUL byte at 40"},
      {std::string("\xFF\xFE{\0}\0", 6), "UTF-16"},
      {"{\"name\": \"caf\xE9\"}", "ill-formed UTF-8"},
      {std::string(100000, '['), "nested more than 200 levels"},
      {"{\"nodes\": NaN}", "nodes: JSON has no NaN"},
      {"{\"nodes\": -Infinity}", "JSON has no NaN or Infinity"},
      {"{\"nodes\": 1e999}", "nodes: found '1e999', expected a finite number"},
      {R"({"node": {"gpus": 1, "gpus": 2}})", "node.gpus"},
      {"nodes = 8", "syntax error"},
      {"{\"nodes\": 8} {}", "line 1"},
  };
  for (const auto& [content, told] : contents) {
    write("bad.json", content);
    for (const auto& arguments : {with_model("bad.json"), with_cluster("bad.json"),
                                  Words{"explain", "bad.json"}, with_stack("bad.json"), with_plan("bad.json"),
                                  Words{"plan"} + kModel + Words{"--cluster", "bad.json"}})
      bad_file(arguments, {"bad.json", told});
  }
  write("bad.json", std::string("[1]"));
  for (const auto& arguments :
       {with_model("bad.json"), with_cluster("bad.json"), with_stack("bad.json"), with_plan("bad.json")})
    bad_file(arguments, {"bad.json"});
}

TEST_F(BadInput, ByteOrderMarkAndLineEndsOfOtherSystemsAreNoMatter) {
  std::string text = "\xEF\xBB\xBF";
  for (const char c : text_of("cluster.json")) text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  write("other.json", text);
  EXPECT_EQ(call(with_cluster("other.json")).out, call(with_cluster("cluster.json")).out);
  std::string runs = "\xEF\xBB\xBF";
  for (const char c : text_of("runs.csv")) runs += c == '\n' ? std::string("\r\n") : std::string(1, c);
  write("other.csv", runs);
  EXPECT_EQ(call({"validate", "other.csv"}).code, ExitCode::ok);
}

TEST_F(BadInput, PathsThatAreNoReadableFile) {
  fs::create_symlink("loop.json", "loop.json");
  const std::vector<std::pair<std::string, std::string>> paths = {
      {"./absent.json", "no such file"},      {"./folder", ""},
      {"loop.json", "symbolic links"},        {"/dev/null", "is empty"},
      {"plan.json/x.json", "cannot be read"}, {"./" + std::string(300, 'x') + ".json", "too long"},
      {"/proc/self/mem", "cannot be read"},  // unreadable even to root
  };
  for (const auto& [path, told] : paths) {
    for (const auto& arguments : {with_model(path), with_cluster(path), with_stack(path), with_plan(path)})
      bad_file(arguments, {path.substr(0, 200), told});
    bad_file({"validate", path}, {path.substr(0, 200), path == "/dev/null" ? "empty" : told});
  }
}

// Root reads every file, unless it gives up the right to; a process keeps it only for files of its own then.
bool give_up_reading_what_is_forbidden() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> rights = {};
  if (syscall(SYS_capget, &header, rights.data()) != 0) return false;
  rights[0].effective &= ~((1U << CAP_DAC_OVERRIDE) | (1U << CAP_DAC_READ_SEARCH));
  return syscall(SYS_capset, &header, rights.data()) == 0;
}

TEST_F(BadInput, UnreadableFileOfAnother) {
  // The source tree may be another's, in a home that only its owner (or root with all rights) can enter.
  fs::copy(SEXTANT_SOURCE_DIR "/tools/presets", "presets", fs::copy_options::recursive);
  const Words presets = {"--presets", "presets"};
  fs::permissions("cluster.json", fs::perms::none);
  const pid_t child = fork();
  if (child == 0) {
    if (!give_up_reading_what_is_forbidden()) _exit(2);
    EXPECT_EQ(call(with_model("model.json") + presets).code, ExitCode::ok);
    bad_file(with_cluster("cluster.json") + presets, {"cluster.json", "Permission denied"});
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << (WEXITSTATUS(status) == 2 ? "capset failed" : "see above");
}

TEST_F(BadInput, HugeFilesAreNotRead) {
  { std::ofstream("huge.json") << "{\"nodes\": 1, "; }
  fs::resize_file("huge.json", 200 << 20);  // a file with a hole: as long, but soon made
  for (const auto& arguments : {with_model("huge.json"), with_cluster("huge.json"), with_stack("huge.json"),
                                with_plan("huge.json"), Words{"validate", "huge.json"}})
    bad_file(arguments, {"huge.json", "is 200.0 MiB, expected at most 64.0 MiB"});
}

// NOLINTNEXTLINE(readability-function-size): a table of fields
TEST_F(BadInput, FieldsOfFiles) {
  struct Case {
    const char* part;
    const char* pointer;
    json value;
    Words told;
  };
  const std::vector<Case> cases = {
      {"cluster", "/nodes", 0, {"nodes: found 0, expected a whole number from 1"}},
      {"cluster", "/nodes", 1.5, {"nodes: found 1.5"}},
      {"cluster", "/nodes", "one", {"nodes: found \"one\""}},
      {"cluster",
       "/nodes",
       nullptr,
       {"nodes", "is missing: a whole number from 1 to 131072, such as \"nodes\": 8"}},
      {"cluster", "/node/gpus", nullptr, {"node.gpus", "is missing: a whole number", "such as \"gpus\": 8"}},
      {"cluster",
       "/node/link",
       nullptr,
       {"node.link", "is missing: one of nvswitch", "such as \"link\": \"nvswitch\""}},
      {"cluster",
       "/fabric/kind",
       nullptr,
       {"fabric.kind", "is missing: a text in quotes, such as \"kind\": \"infiniband\""}},
      {"cluster",
       "/fabric/efficiency",
       nullptr,
       {"fabric.efficiency", "is missing: a number above 0, up to 1, such as"}},
      {"cluster", "/device", nullptr, {"device", "is missing: an object { ... } or the name of a preset"}},
      {"cluster", "/device/peak_TFLOPS", nullptr, {"device.peak_TFLOPS", "is missing", "{\"bf16\": 312}"}},
      {"cluster",
       "/device/generation",
       nullptr,
       {"device.generation", "is missing", "\"generation\": \"ampere\""}},
      {"cluster", "/nodes", 99999999999999999999.0, {"nodes: found 1e+20"}},
      {"cluster", "/nodes", 18446744073709551615U, {"nodes: found 18446744073709551615"}},
      {"cluster", "/device/memory_GiB", -1, {"device.memory_GiB: found -1"}},
      {"cluster", "/fabric/bandwith_GBps", 1, {"fabric.bandwith_GBps", "did you mean bandwidth_GBps?"}},
      {"cluster", "/fabric/bandwidth_GBps", 3, {"contradict"}},
      {"cluster", "/name", std::string("a\0b", 3), {"name", "without control characters"}},
      {"cluster", "/name", "\x1b[31mred", {"name", "without control characters"}},
      {"cluster", "/device", "h1000", {"device: found \"h1000\"", "did you mean"}},
      {"cluster", "/xylophone", 1, {"xylophone", "unknown field, there are name, nodes, device"}},
      {"model", "/hidden", 0, {"hidden: found 0"}},
      {"model", "/hidden", nullptr, {"hidden", "is missing: a whole number, such as \"hidden\": 4096"}},
      {"model",
       "/vocab_size",
       nullptr,
       {"vocab_size", "is missing: a whole number, such as \"vocab_size\": 32000"}},
      {"model", "/n_kv_heads", 5, {"n_kv_heads: found 5"}},
      {"model", "/n_layer", 3, {"n_layer", "did you mean n_layers?"}},
      {"stack", "/can/zero_stages", {0, 7}, {"can.zero_stages[1]: found 7"}},
      {"stack", "/base", "no-such-stack", {"no-such-stack"}},
      {"stack",
       "/kernels/attention",
       "flash9",
       {"kernels.attention: found \"flash9\"", "did you mean flash"}},
  };
  for (const auto& c : cases) {
    json changed = whole_[c.part];
    changed[json::json_pointer(c.pointer)] = c.value;
    write("bad.json", changed);
    const std::string part = c.part;
    const Words arguments = part == "cluster" ? with_cluster("bad.json")
                            : part == "model" ? with_model("bad.json")
                                              : with_stack("bad.json");
    bad_file(arguments, c.told + Words{"bad.json"});
  }
}

// What is worked out from a wrong value is no second mistake.
TEST_F(BadInput, OnlyTheFirstCauseIsTold) {
  for (const char* key : {"hidden", "n_heads"})
    for (const json& value : {json("nan"), json(0), json(-8), json(1 << 30)}) {
      json model = whole_["model"];
      model.erase("n_kv_heads");
      model.erase("head_dim");
      model[key] = value;
      write("bad.json", model);
      const Called o = call(with_model("bad.json"), 200);
      EXPECT_EQ(o.code, ExitCode::bad_input);
      EXPECT_NE(o.err.find(std::string(key) + ": found"), std::string::npos) << o.err;
      EXPECT_EQ(o.err.find("n_kv_heads"), std::string::npos) << o.err;
      EXPECT_EQ(o.err.find("head_dim"), std::string::npos) << o.err;
    }
}

TEST_F(BadInput, PlanFiles) {
  const std::vector<std::tuple<const char*, json, Words>> cases = {
      {"/schema", "sextant.plan/9", {"schema: found \"sextant.plan/9\"", "sextant.plan_file/1"}},
      {"/plan/tp", 0, {"plan.tp: found 0"}},
      {"/plan/tp", 4, {"plan"}},  // 16 ranks on 8 GPUs
      {"/plan/micro_batch", 3, {"plan.micro_batch * dp: found 6"}},
      {"/plan/zero_stag", 1, {"plan.zero_stag", "did you mean zero_stage?"}},
      {"/stack/name", "other", {"stack.name: found other"}},
      {"/prediction/step_time_s/lower", 1e9, {"prediction.step_time_s", "lower <= value <= upper"}},
      {"/cluster/nodes", -1, {"cluster.nodes: found -1"}},
      {"/cluster/fabric/kind",
       nullptr,
       {"cluster.fabric.kind", "is missing", "such as \"kind\": \"infiniband\""}},
      {"/plan", nullptr, {"plan", "is missing: an object { ... }"}},
      {"/prediction/step_time_s",
       nullptr,
       {"prediction.step_time_s", "is missing: an object { ... } of numbers of s"}},
      {"/prediction/mfu",
       nullptr,
       {"prediction.mfu", "is missing: a number of 0 or more, such as \"mfu\": 0.7"}},
  };
  for (const auto& [pointer, value, told] : cases) {
    json changed = whole_;
    changed[json::json_pointer(pointer)] = value;
    write("bad.json", changed);
    bad_file(simulate({"--plan", "bad.json"}), told + Words{"bad.json"});
  }
  bad_file(simulate({"--plan", "model.json"}), {"model.json", "found a model", "--model takes it"});
  bad_file(simulate({"--plan", "stack.json"}), {"stack.json", "found a software stack", "--stack takes it"});
  bad_file(simulate({"--plan", "cluster.json"}), {"cluster.json", "found a cluster", "--cluster takes it"});
}

TEST_F(BadInput, TablesOfRuns) {
  const std::string good = text_of("runs.csv");
  const std::size_t header = good.find('\n') + 1;
  const std::string row = good.substr(header);
  const auto with_cell = [&](const std::string& column, const std::string& cell) {
    const auto place = [](const std::string& line, std::size_t n) {
      std::size_t at = 0;
      while (n-- > 0) at = line.find(',', at) + 1;
      return at;
    };
    const std::size_t at = ("," + good.substr(0, header)).find("," + column + ",");
    EXPECT_NE(at, std::string::npos) << column;
    const auto n = static_cast<std::size_t>(
        std::count(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(at), ','));
    const std::size_t from = place(row, n), to = row.find(',', from);
    return good.substr(0, header) + row.substr(0, from) + cell + row.substr(to);
  };
  const std::vector<std::pair<std::string, Words>> cases = {
      {"", {"empty"}},
      {"a,b\n1,2\n", {"line 1: found 2 columns", "sextant validate --example"}},
      {good.substr(0, header) + "1,2\n", {"line 2: found 2 cells, expected"}},
      {good.substr(0, header + row.size() / 2), {"line 2"}},
      {good.substr(0, header + 3) + '\0' + good.substr(header + 3), {"line 2: found a NUL byte"}},
      {good.substr(0, header) + "\"example-1,meta", {"line 2: expected a closing quote"}},
      {"run_id," + good, {"run_id", "each column once"}},
      {with_cell("tp", "0"), {"bad.csv:2: tp: found 0"}},
      {with_cell("tp", "-2"), {"bad.csv:2: tp: found -2"}},
      {with_cell("layers", "99999999999999999999"), {"bad.csv:2: layers: found 99999999999999999999"}},
      {with_cell("seq_len", "nan"), {"bad.csv:2: seq_len: found nan"}},
      {with_cell("recompute", "some"), {"recompute: found some", "one of none"}},
      {with_cell("dp", "3"), {"dp: found 3", "nodes*gpus_per_node"}},
  };
  for (const auto& [content, told] : cases) {
    write("bad.csv", content);
    bad_file({"validate", "bad.csv"}, told);
    bad_file({"validate", "bad.csv", "--predictions", "out.csv"}, told);
    bad_file({"validate", "bad.csv", "--json"}, told);
  }
}

TEST_F(BadInput, APlanFileIsNoOtherFile) {
  for (const Words& arguments : {with_cluster("plan.json"), with_model("plan.json"), with_stack("plan.json")})
    bad_file(arguments, {"plan.json: found a plan file of sextant", "--plan takes it", "a file of its own"});
}

TEST_F(BadInput, OutputsThatCannotBeWritten) {
  const std::vector<std::pair<std::string, std::string>> paths = {
      {"folder", "Is a directory"},          {"absent/x.json", "(there is no folder absent)"},
      {"plan.json/x", "Not a directory"},    {std::string(300, 'x'), "File name too long"},
      {"/proc/x.json", "cannot be written"},
  };
  for (const auto& [path, told] : paths) {
    bad_file(with({"-o", path}), {path, told});
    bad_file(with({"--trace", path}), {path, told});
    bad_file(search({"-o", path}), {path, told});
    bad_file({"validate", "runs.csv", "--predictions", path}, {path, told});
  }
}

TEST_F(BadInput, AnOutputIsAFile) {
  usage(with({"-o", "-"}), {"--output: found -, expected a file", "./- is a file"});
  usage(with({"--trace", "-"}), {"--trace: found -"});
  usage(search({"-o", "-"}), {"--output: found -"});
  usage({"validate", "runs.csv", "--predictions", "-"}, {"--predictions: found -"});
}

TEST_F(BadInput, OutputsThatAreInputs) {
  fs::create_symlink("cluster.json", "link.json");
  fs::create_hard_link("model.json", "hard.json");
  const auto before = text_of("runs.csv");
  usage(simulate({"--plan", "plan.json", "-o", "plan.json"}),
        {"--output: found plan.json, expected a file of its own"});
  usage(simulate({"--plan", "plan.json", "--trace", "./folder/../plan.json"}), {"--trace"});
  usage(with_cluster("cluster.json") + Words{"-o", "link.json"}, {"--output: found link.json"});
  usage(with_model("./model.json") + Words{"-o", "hard.json"}, {"--output: found hard.json"});
  usage(with({"-o", "new.json", "--trace", "./new.json"}), {"--trace: found ./new.json"});
  usage({"validate", "runs.csv", "--predictions", "runs.csv"}, {"--predictions: found runs.csv"});
  EXPECT_EQ(text_of("runs.csv"), before);
  EXPECT_EQ(call(with_cluster("cluster.json") + Words{"-o", "new.json"}).code, ExitCode::ok);
}

TEST_F(BadInput, FullDevice) {
  for (const auto& arguments : {with({"-o", "/dev/full"}), with({"--trace", "/dev/full"}),
                                Words{"validate", "runs.csv", "--predictions", "/dev/full"}})
    refused(arguments, ExitCode::run_failed, {"/dev/full", "No space left on device"});
}

// A real full disk: a file system of 16 KiB, in a mount namespace of a child.
TEST_F(BadInput, FullDisk) {
  const pid_t child = fork();
  if (child == 0) {
    const bool root = geteuid() == 0;
    const auto own = [](auto id) { return "0 " + std::to_string(id) + " 1"; };
    const std::string user = own(geteuid()), group = own(getegid());
    if (unshare(root ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) _exit(2);
    if (!root) {  // else nobody could own a file of the new disk
      write("/proc/self/setgroups", std::string("deny"));
      write("/proc/self/uid_map", user);
      write("/proc/self/gid_map", group);
    }
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "folder", "tmpfs", 0, "size=16k") != 0)
      _exit(2);
    write("folder/old.json", std::string("old"));
    write("folder/fill", std::string(16 << 10, 'x'));
    refused(with({"-o", "folder/new.json"}), ExitCode::run_failed, {"No space left on device"});
    refused(with({"-o", "folder/old.json"}), ExitCode::run_failed, {"No space left on device"});
    refused(with({"--trace", "folder/new.json.gz"}), ExitCode::run_failed, {"No space left on device"});
    EXPECT_EQ(text_of("folder/old.json"), "old");
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "this machine lets nobody mount a tmpfs";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace sextant
