// Reading values from JSON: every problem at once, each with file, path, value and expectation.
#include "core/base/json_io.hpp"

#include <chrono>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck/gtest.h>

#include "core/base/decimal.hpp"
#include "core/base/dtype.hpp"
#include "core/base/shallow_json.hpp"
#include "core/plan/parallel_plan.hpp"
#include "tests/support/arbitrary.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {

struct Link {
  BytesPerSecond bandwidth;
  Seconds latency;
  bool operator==(const Link&) const = default;
};
constexpr auto kLinkFields = [](auto& io, auto& l) {
  io.required("bandwidth_GBps", l.bandwidth, above(0));
  io.optional("latency_us", l.latency, at_least(0));
};
void to_json(nlohmann::json& j, const Link& l) { write_object(j, l, kLinkFields); }
void from_json(const nlohmann::json& j, Link& l) { read_object(j, l, kLinkFields); }

struct Machine {
  std::string name;
  int gpus = 8;
  Bytes memory;
  Bytes cache{1};
  bool fast = false;
  double share = 0.5;
  Link link;
  std::vector<Link> extra;
  std::map<Dtype, FlopsPerSecond> peak;
  std::map<std::string, int> counts;
  std::optional<Link> spare;
  std::array<int, 3> grid{1, 1, 1};
  bool operator==(const Machine&) const = default;
};
constexpr auto kMachineFields = [](auto& io, auto& m) {
  io.required("name", m.name);
  io.optional("gpus", m.gpus, between(1, 72));
  io.required("memory_GiB", m.memory, above(0));
  io.optional("cache_bytes", m.cache);
  io.optional("fast", m.fast);
  io.optional("share", m.share, between(0, 1));
  io.required("link", m.link);
  io.optional("extra", m.extra);
  io.optional("peak_TFLOPS", m.peak, kDtypeNames);
  io.optional("counts", m.counts);
  io.optional("spare", m.spare);
  io.optional("grid", m.grid);
  io.ignored("source");
};
void to_json(nlohmann::json& j, const Machine& m) { write_object(j, m, kMachineFields); }
void from_json(const nlohmann::json& j, Machine& m) { read_object(j, m, kMachineFields); }

namespace {

std::string problems_of(std::string_view text) {
  try {
    with_file("m.json", [&] { parse_json(text, "m.json").get<Machine>(); });
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

Machine sample() {
  Machine m;
  m.name = "dgx";
  m.memory = from_gib(79.65);
  m.cache = Bytes(1234567);
  m.link = {BytesPerSecond(235e9), Seconds(2.7e-6)};
  m.extra = {{BytesPerSecond(25e9), Seconds(5e-6)}, {BytesPerSecond(12.5e9), Seconds(0)}};
  m.peak = {{Dtype::bf16, FlopsPerSecond(989.4e12)}, {Dtype::fp32, FlopsPerSecond(67e12)}};
  m.counts = {{"nic", 8}};
  m.spare = m.extra[0];
  return m;
}

TEST(JsonIo, WritesAndReadsEveryKindOfField) {
  const Machine m = sample();
  const nlohmann::json j = m;
  EXPECT_EQ(j["link"]["bandwidth_GBps"], 235.0);
  EXPECT_EQ(j["link"]["latency_us"], 2.7);
  EXPECT_EQ(j["peak_TFLOPS"]["bf16"], 989.4);
  EXPECT_EQ(j["cache_bytes"], 1234567);
  EXPECT_EQ(j.get<Machine>(), m);
  EXPECT_EQ(parse_json(j.dump(), "").get<Machine>(), m);
  Machine other = m;  // negative control
  other.link.latency += Seconds(1e-12);
  EXPECT_NE(j.get<Machine>(), other);
}

TEST(JsonIo, AllowsCommentsAndKeepsDefaults) {
  const auto m = parse_json(R"(// a machine
    {"name": "a", /* GiB */ "memory_GiB": 80, "link": {"bandwidth_GBps": 1}, "gpus": null, "source": "x"})",
                            "m.json")
                     .get<Machine>();
  EXPECT_EQ(m.gpus, 8);
  EXPECT_EQ(m.memory, Bytes(80LL << 30));
  EXPECT_FALSE(m.spare);
}

TEST(JsonIo, ReportsEveryProblemAtOnceWithItsPath) {
  const std::string all =
      problems_of(R"({"gpus": 99, "memory_GiB": "big", "fast": 1, "share": 1.5, "gridd": 3,
      "link": {"bandwith_GBps": 3}, "extra": [{"bandwidth_GBps": 1}, {"bandwidth_GBps": -1}],
      "peak_TFLOPS": {"bf61": 3}, "counts": {"a": 1.5}})");
  for (const char* line :
       {"m.json: name: is missing: a text in quotes\n",
        "m.json: gpus: found 99, expected a whole number from 1 to 72",
        "m.json: memory_GiB: found \"big\", expected a finite number above 0",
        "m.json: fast: found 1, expected true or false",
        "m.json: share: found 1.5, expected a number from 0 to 1",
        "m.json: gridd: unknown field, did you mean grid?",
        "m.json: link.bandwidth_GBps: is missing: a number of GB/s above 0, such as \"bandwidth_GBps\": 1",
        "m.json: link.bandwith_GBps: unknown field, did you mean bandwidth_GBps?",
        "m.json: extra[1].bandwidth_GBps: found -1, expected a number above 0",
        "m.json: peak_TFLOPS.bf61: found the key \"bf61\", expected one of fp8, fp16, bf16, tf32, fp32, "
        "fp64; "
        "did you mean bf16?",
        "m.json: counts.a: found 1.5, expected a whole number; it has a fraction"})
    EXPECT_NE(all.find(line), std::string::npos) << line << "\nin\n" << all;
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 10);
}

// Type, unit and, where one is known, an example; a part that is missing, its own fields not.
TEST(JsonIo, SaysWhatBelongsWhereAKeyIsMissing) {
  EXPECT_EQ(problems_of("{}"),
            "m.json: name: is missing: a text in quotes\n"
            "m.json: memory_GiB: is missing: a number of GiB above 0, such as \"memory_GiB\": 1\n"
            "m.json: link: is missing: an object { ... }");
  EXPECT_EQ(
      problems_of(R"({"name": null, "memory_GiB": 80, "link": {"bandwidth_GBps": null}})"),
      "m.json: name: is missing: a text in quotes\n"
      "m.json: link.bandwidth_GBps: is missing: a number of GB/s above 0, such as \"bandwidth_GBps\": 1");
  // Negative control: what is there and wrong is not missing.
  EXPECT_EQ(problems_of(R"({"name": "a", "memory_GiB": 80, "link": []})"),
            "m.json: link: found a list of 0 items, expected an object { ... }");
}

struct Kinds {
  bool flag = false;
  int count = 0;
  Dtype dtype = Dtype::fp32;
  std::vector<int> list;
  std::map<std::string, int> table;
  std::map<Dtype, FlopsPerSecond> peak;
  double rate = 0, plain = 0;
};
constexpr auto kKindsFields = [](auto& io, auto& k) {
  io.required("flag", k.flag);
  io.required("nodes", k.count, between(1, 64));
  io.required("dtype", k.dtype, kDtypeNames);
  io.required("list", k.list);
  io.required("table", k.table);
  io.required("peak_TFLOPS", k.peak, kDtypeNames);
  io.required("tokens_per_s", k.rate, at_least(0));
  io.required("share", k.plain, between(0, 1));
};
void from_json(const nlohmann::json& j, Kinds& k) { read_object(j, k, kKindsFields); }

TEST(JsonIo, SaysOfEveryKindOfFieldWhatBelongsThere) {
  std::string told;
  try {
    nlohmann::json::object().get<Kinds>();
  } catch (const ConfigError& e) {
    told = e.what();
  }
  EXPECT_EQ(
      told,
      "flag: is missing: true or false\n"
      "nodes: is missing: a whole number from 1 to 64, such as \"nodes\": 8\n"
      "dtype: is missing: one of fp8, fp16, bf16, tf32, fp32, fp64\n"
      "list: is missing: a list [ ... ]\n"
      "table: is missing: an object { ... }\n"
      "peak_TFLOPS: is missing: an object { ... } of numbers of TFLOP/s, such as \"peak_TFLOPS\": {\"bf16\": "
      "312}\n"
      "tokens_per_s: is missing: a number of 1/s of 0 or more, such as \"tokens_per_s\": 1\n"
      "share: is missing: a number from 0 to 1");
}

TEST(JsonIo, SaysWhyWhatLooksLikeANumberIsNone) {
  const std::string all = problems_of(
      R"({"name": "a", "gpus": "8", "memory_GiB": "80", "counts": {"a": 40.5, "b": "4096", "c": "many", "d": 3000000000}})");
  for (const char* line :
       {"gpus: found \"8\", expected a whole number from 1 to 72; it is a text: write 8 without quotes\n",
        "memory_GiB: found \"80\", expected a finite number above 0; it is a text: write 80 without quotes",
        "counts.a: found 40.5, expected a whole number; it has a fraction\n",
        "counts.b: found \"4096\", expected a whole number; it is a text: write 4096 without quotes",
        "counts.c: found \"many\", expected a whole number; it is a text"})
    EXPECT_NE(all.find(line), std::string::npos) << line << "\nin\n" << all;
  EXPECT_EQ(all.find("counts.b: found \"4096\", expected a whole number of"), std::string::npos) << all;
}

TEST(JsonIo, RefusesNumbersThatDoNotFit) {
  const auto with = [](const std::string& field) {
    return problems_of(R"({"name": "a", "memory_GiB": 80, "link": {"bandwidth_GBps": 1}, )" + field + "}");
  };
  EXPECT_EQ(with(R"("gpus": 8)"), "");
  EXPECT_EQ(with(R"("gpus": 8.0)"), "");
  EXPECT_NE(with(R"("gpus": 8.5)"), "");
  EXPECT_NE(with(R"("gpus": true)"), "");
  EXPECT_NE(with(R"("counts": {"a": 3000000000})"), "");
  EXPECT_NE(with(R"("counts": {"a": 99999999999999999999})"), "");
  EXPECT_NE(with(R"("cache_bytes": 1e300)"), "");
  EXPECT_NE(with(R"("grid": [1, 2])"), "");
  EXPECT_NE(with(R"("extra": {})"), "");
  EXPECT_NE(with(R"("spare": {"bandwidth_GBps": 1e305})"), "");
}

// A rate of 1e-320 is above 0, and what it carries takes for ever.
TEST(JsonIo, RefusesNumbersWhoseInverseIsInfinite) {
  const auto with = [](const std::string& rate) {
    return problems_of(R"({"name": "a", "memory_GiB": 80, "link": {"bandwidth_GBps": )" + rate + "}}");
  };
  for (const char* bad : {"1e-320", "4.9e-324", "1e-101", "1e101", "1e305"})
    EXPECT_NE(with(bad).find("link.bandwidth_GBps"), std::string::npos) << bad << ": " << with(bad);
  for (const char* good : {"1e-90", "1e90", "25"}) EXPECT_EQ(with(good), "") << good;
}

// Logs, tables and settings are looked at as JSON first: what is nested without end ends nothing.
TEST(ShallowJson, DeepTextIsDiscarded) {
  const auto nested = [](int levels, const char* open, const char* end) {
    std::string text;
    for (int i = 0; i < levels; ++i) text += open;
    text += "1";
    for (int i = 0; i < levels; ++i) text += end;
    return text;
  };
  for (const int levels : {1, 150, 200}) {
    EXPECT_TRUE(json_or_discarded(nested(levels, "[", "]")).is_array()) << levels;
    EXPECT_TRUE(json_or_discarded(nested(levels, R"({"a":)", "}")).is_object()) << levels;
  }
  for (const int levels : {201, 100'000}) {
    EXPECT_TRUE(json_or_discarded(nested(levels, "[", "]")).is_discarded()) << levels;
    EXPECT_TRUE(json_or_discarded(nested(levels, R"({"a":)", "}")).is_discarded()) << levels;
  }
  EXPECT_TRUE(json_or_discarded("[1] // a quote: \"\n").is_array());
  EXPECT_TRUE(json_or_discarded("iteration 1 | loss 2").is_discarded());
}

// No position in a syntax that is another one's.
TEST(JsonIo, OtherFormatsAreNamed) {
  const auto refusal = [](const char* text, const char* file) -> std::string {
    try {
      parse_json(text, file);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "read";
  };
  EXPECT_NE(refusal("[parallelism\n", "t.toml").find("t.toml: found TOML, expected JSON"), std::string::npos)
      << refusal("[parallelism\n", "t.toml");
  EXPECT_NE(refusal("tp: 2\n", "n.yaml").find("found YAML, expected JSON"), std::string::npos);
  EXPECT_NE(refusal("tp: 2\n", "n.yaml").find("--from"), std::string::npos);
  EXPECT_EQ(refusal(R"( {"tp": 2})", "n.yaml"), "read");
  EXPECT_NE(refusal("tp: 2\n", "n.json").find("syntax error"), std::string::npos);
}

TEST(JsonIo, SyntaxErrorsHaveLineAndColumn) {
  EXPECT_EQ(problems_of("{\n  \"gpus\": 8,,\n}").find("m.json: line 2, column 13: syntax error"), 0U)
      << problems_of("{\n  \"gpus\": 8,,\n}");
  EXPECT_NE(problems_of("{\"gpus\": 8").find("truncated"), std::string::npos);
  EXPECT_NE(problems_of("{\"name\": \"dg").find("truncated"), std::string::npos);
  EXPECT_EQ(problems_of("{\"gpus\": 1e999}"), "m.json: gpus: found '1e999', expected a finite number");
  for (const char* bad : {"NaN", "Infinity", "-Infinity", "nan"}) {
    const std::string told = problems_of(fmt::format("{{\"gpus\": {}}}", bad));
    EXPECT_NE(told.find("line 1, column 1"), std::string::npos) << told;
    EXPECT_NE(told.find("gpus: JSON has no NaN or Infinity"), std::string::npos) << told;
  }
  EXPECT_EQ(problems_of("{\"gpus\": x}").find("NaN"), std::string::npos);
  EXPECT_NE(problems_of(std::string("\xFF\xFE{\0}\0", 6)).find("UTF-16"), std::string::npos);
  EXPECT_NE(problems_of(std::string("{\"name\": \"a\"}\n\0\0", 16)).find("a NUL byte at 14"),
            std::string::npos);
  EXPECT_NE(problems_of("").find("is empty"), std::string::npos);
  EXPECT_NE(problems_of("[1]").find("found a list of 1 items, expected an object"), std::string::npos);
  EXPECT_NE(problems_of(R"({"gpus": 1, "gpus": 2})").find("gpus: is given twice"), std::string::npos);
  EXPECT_NE(problems_of(R"({"extra": [{}, {"a": 1, "a": 2}]})").find("extra[1].a: is given twice"),
            std::string::npos);
  EXPECT_NE(problems_of(std::string(100000, '[')).find("nested more than 200 levels"), std::string::npos);
  EXPECT_NE(problems_of("{\"name\": \"\xff\"}").find("UTF-8"), std::string::npos);
}

// Ten times the objects may take ten times as long, not a hundred times: 400,000 would take minutes.
TEST(JsonIo, LongListsAreReadInLinearTime) {
  std::string text = "[{}";
  for (int i = 1; i < 400'000; ++i) text += ",{}";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(text + "]", "m.json").size(), 400'000U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(JsonIo, SetsAFieldByPath) {
  nlohmann::json j = sample();
  set_json_path(j, "link.bandwidth_GBps", "12.5");
  set_json_path(j, "name", "my box");
  set_json_path(j, "spare", "null");
  const Machine m = j.get<Machine>();
  EXPECT_EQ(m.link.bandwidth, BytesPerSecond(12.5e9));
  EXPECT_EQ(m.name, "my box");
  EXPECT_FALSE(m.spare);
  nlohmann::json number;
  for (const auto& [text, value] : {std::pair{".5", 0.5}, {"-.5", -0.5}}) {
    set_json_path(number, "x", text);
    EXPECT_EQ(number.at("x"), value);
  }
  const std::string deep =
      std::string(60'000, '[') + std::string(60'000, ']');  // as long as an argument may be
  set_json_path(number, "x", deep);
  EXPECT_TRUE(number.at("x").is_string()) << "copies of so deep a value would end the program";
  set_json_path(number, "x", "[[[1]]]");
  EXPECT_TRUE(number.at("x").is_array()) << "control";
  set_json_path(number, "x", ".x");
  EXPECT_EQ(number.at("x"), ".x");
  // What is absent is added; items of lists are found by their index.
  set_json_path(j, "spare.bandwidth_GBps", "3");
  set_json_path(j, "extra[1].bandwidth_GBps", "7");
  set_json_path(j, "extra[2].bandwidth_GBps", "8");
  const Machine more = j.get<Machine>();
  ASSERT_TRUE(more.spare);
  EXPECT_EQ(more.spare->bandwidth, BytesPerSecond(3e9));
  EXPECT_EQ(more.extra.size(), 3U);
  EXPECT_EQ(more.extra[1].bandwidth, BytesPerSecond(7e9));
  for (const char* path : {"", "link.", ".link", "extra[4]", "extra[]", "extra[x]", "extra[1", "extra[-1]",
                           "extra]1[", "name[0]", "name.first", "extra[99999999999999999999]", "link..x",
                           "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a"})
    EXPECT_THROW(set_json_path(j, path, "1"), ConfigError) << path;
  // A slip of the keyboard is the reader's to tell.
  set_json_path(j, "link.bandwith_GBps", "1");
  EXPECT_NE(problems_of(j.dump()).find("link.bandwith_GBps: unknown field, did you mean bandwidth_GBps?"),
            std::string::npos);
}

TEST(JsonIo, LoadsAFileAndNamesItInEveryProblem) {
  const TempDir dir;
  const auto good = dir.write("good.json", nlohmann::json(sample()).dump());
  EXPECT_EQ(load_json<Machine>(good), sample());
  const auto bad = dir.write("bad.json", "{}");
  try {
    load_json<Machine>(bad);
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    ASSERT_EQ(e.problems().size(), 3U);
    for (const auto& p : e.problems()) EXPECT_EQ(p.file, bad.string());
  }
  write_json_file(dir.path() / "out.json", sample());
  EXPECT_EQ(load_json<Machine>(dir.path() / "out.json"), sample());
}

RC_GTEST_PROP(JsonIo, PlansRoundTripThroughText, ()) {
  const ParallelPlan p = arbitrary::plan();
  RC_ASSERT(parse_json(nlohmann::json(p).dump(), "").get<ParallelPlan>() == p);
  RC_ASSERT(nlohmann::json(plan_key(p)).get<ParallelPlan>() == p);
}

RC_GTEST_PROP(JsonIo, TrainingSpecsRoundTripThroughText, ()) {
  const TrainingSpec t = arbitrary::training();
  RC_ASSERT(parse_json(nlohmann::json(t).dump(), "").get<TrainingSpec>() == t);
}

RC_GTEST_PROP(JsonIo, ModelsRoundTripThroughText, ()) {
  const ModelSpec m = arbitrary::model();
  RC_PRE(validate(m).empty());
  RC_ASSERT(parse_json(nlohmann::json(m).dump(), "").get<ModelSpec>() == m);
}

RC_GTEST_PROP(JsonIo, QuantitiesOfFifteenDigitsRoundTripExactly, ()) {
  const auto some = [] {
    const auto digits = *rc::gen::inRange<std::int64_t>(1, 999'999'999'999'999);
    return *parse_decimal(std::to_string(digits), *rc::gen::inRange(-3, 25));
  };
  const Link l{BytesPerSecond(some()), Seconds(some())};
  RC_ASSERT(parse_json(nlohmann::json(l).dump(), "").get<Link>() == l);
}

}  // namespace
}  // namespace sextant
