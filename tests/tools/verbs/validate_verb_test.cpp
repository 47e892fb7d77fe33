// `sextant validate`: the predictions file, the exit code of a tolerance, and bad files.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/csv.hpp"
#include "core/base/file_io.hpp"
#include "planner/validation/validate.hpp"
#include "tests/support/measured.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tools/inputs/run_tables.hpp"
#include "tools/output/validation_text.hpp"

namespace sextant {
namespace {

// The example run with one cell changed, and under another name.
std::string example_with(const std::string& column, const std::string& value,
                         const std::string& id = "example-1") {
  const CsvTable table = parse_csv(call({"validate", "--example"}).out, "example");
  std::string header, row;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    const std::string& name = table.columns[i];
    header += (i ? "," : "") + name;
    row += (i ? "," : "") + csv_field(name == column     ? value
                                      : name == "run_id" ? id
                                                         : table.rows[0].cells[i]);
  }
  return header + "\n" + row + "\n";
}

TEST(Validate, TheMeanOfLargeSourcesStandsBesideTheMeanOfAll) {
  const auto table = [](int rows) {
    std::ostringstream out, err;
    Session session{.terminal = {.out = out, .err = err, .columns = 100}, .common = {}, .arguments = {}};
    SourceScore large, other;
    large.source = "large";
    large.rows = 25;
    large.mape = 4;
    other.source = "other";
    other.rows = rows;
    other.mape = 1;
    print_scores(session, {large, other});
    return out.str();
  };
  const std::string small = table(1);
  EXPECT_NE(small.find("all sources           26      2.5"), std::string::npos) << small;
  EXPECT_NE(small.find("of 20 rows or more    25      4.0"), std::string::npos) << small;
  EXPECT_EQ(table(20).find("rows or more"), std::string::npos);  // they are the same
}

TEST(Validate, PredictsAnUnmeasuredRunIntoTheStatedColumns) {
  const TempDir folder;
  const std::string runs = folder.write("runs.csv", example_with("", "")).string();
  const std::string out = (folder.path() / "out.csv").string();
  const auto outcome = call({"validate", runs, "--predictions", out});
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const CsvTable table = read_csv(out);
  EXPECT_EQ(table.columns,
            (std::vector<std::string>{"run_id", "step_time_s", "step_time_s_lower", "step_time_s_upper",
                                      "peak_memory_GiB", "peak_memory_GiB_lower", "peak_memory_GiB_upper",
                                      "fits", "note"}));
  ASSERT_EQ(table.rows.size(), 1U);
  const auto number = [&](const char* column) { return std::stod(table.cell(table.rows[0], column)); };
  EXPECT_GT(number("step_time_s_lower"), 0);
  EXPECT_LT(number("step_time_s_lower"), number("step_time_s"));
  EXPECT_LT(number("step_time_s"), number("step_time_s_upper"));
  EXPECT_EQ(table.cell(table.rows[0], "fits"), "1");
  const auto json = nlohmann::json::parse(call({"validate", runs, "--json"}).out);
  EXPECT_NEAR(json.at("runs")[0].at("step_time_s"), number("step_time_s"), 1e-6);
}

TEST(Validate, AFolderStandsForItsTables) {
  const TempDir folder;
  const std::string path = folder.path().string();
  EXPECT_NE(call({"validate", path}).err.find("a folder without CSV files"), std::string::npos);
  folder.write("b.csv", example_with("", "", "second"));
  folder.write("a.csv", example_with("", "", "first"));
  folder.write("notes.txt", "not a table");
  const auto outcome = call({"validate", path, "--json"});
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const auto runs = nlohmann::json::parse(outcome.out).at("runs");
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].at("run_id"), "first");
  EXPECT_EQ(runs[1].at("run_id"), "second");
  EXPECT_NE(call({"validate", path, "--predictions", path + "/a.csv"}).code, ExitCode::ok);
}

TEST(Validate, ARowThatCannotBeSimulatedHasEmptyCellsAndAReason) {
  const TempDir folder;
  const std::string runs = folder.write("runs.csv", example_with("gpu", "Z9000")).string();
  const std::string out = (folder.path() / "out.csv").string();
  const auto outcome = call({"validate", runs, "--predictions", out});
  EXPECT_EQ(outcome.code, ExitCode::ok);
  EXPECT_NE(outcome.err.find("not predicted: " + runs + ":2: example-1: "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("Z9000"), std::string::npos) << outcome.err;
  const CsvTable table = read_csv(out);
  EXPECT_EQ(table.cell(table.rows[0], "step_time_s"), "");
  EXPECT_EQ(table.cell(table.rows[0], "fits"), "");
  EXPECT_NE(table.cell(table.rows[0], "note").find("Z9000"), std::string::npos);
}

TEST(Validate, OneBadRowDoesNotHideTheOthers) {
  const TempDir folder;
  const std::string good = example_with("", ""), bad = example_with("layers", "forty", "example-2");
  const std::string runs = folder.write("runs.csv", good + bad.substr(bad.find('\n') + 1)).string();
  const std::string out = (folder.path() / "out.csv").string();
  const auto outcome = call({"validate", runs, "--predictions", out});
  EXPECT_EQ(outcome.code, ExitCode::ok);
  EXPECT_NE(outcome.err.find("not predicted: " + runs + ":3: layers"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("warning: 1 of 2 rows are not predicted"), std::string::npos) << outcome.err;
  const CsvTable table = read_csv(out);
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_NE(table.cell(table.rows[0], "step_time_s"), "");
  EXPECT_EQ(table.cell(table.rows[1], "run_id"), "example-2");
  EXPECT_EQ(table.cell(table.rows[1], "step_time_s"), "");
  EXPECT_NE(table.cell(table.rows[1], "note").find("forty"), std::string::npos);
}

TEST(Validate, RowsThatCannotBeReadAreNotedOneByOne) {
  const TempDir folder;
  const std::string good = example_with("", ""), bad = example_with("layers", "forty", "example-3"),
                    ragged = "example-2,example,2025\n", nameless = example_with("", "", "");
  const auto row = [](const std::string& text) { return text.substr(text.find('\n') + 1); };
  const std::string runs = folder.write("runs.csv", good + row(bad) + ragged + row(nameless)).string();
  const std::string out = (folder.path() / "out.csv").string();
  EXPECT_EQ(call({"validate", runs, "--predictions", out}).code, ExitCode::ok);
  const CsvTable table = read_csv(out);
  ASSERT_EQ(table.rows.size(), 4U);
  const auto note = [&](std::size_t i) { return table.cell(table.rows[i], "note"); };
  EXPECT_NE(note(1).find("found forty"), std::string::npos) << note(1);
  EXPECT_EQ(table.cell(table.rows[2], "run_id"), "example-2");
  EXPECT_NE(note(2).find("found 3 cells, expected 33"), std::string::npos) << note(2);
  EXPECT_NE(note(3).find("run_id"), std::string::npos) << note(3);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(table.cell(table.rows[i], "step_time_s").empty(), i > 0) << i;
}

TEST(Validate, AllThatIsScoredFitsEightyColumns) {
  const TempDir folder;
  const std::string rows = example_with("step_time_s", "4");
  const auto outcome = call({"validate", folder.write("runs.csv", rows).string()});
  EXPECT_EQ(outcome.code, ExitCode::ok);
  for (const char* said : {"error %", "median %", "p90 %", "in interval %"})
    EXPECT_NE(outcome.out.find(said), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("not shown"), std::string::npos) << outcome.out;
}

TEST(Validate, WhatIsNotPredictedIsToldInEightyColumns) {
  const TempDir folder;
  const std::string good = example_with("", ""), bad = example_with("gpu", "Z9000", "example-2"),
                    unread = example_with("layers", "forty", "example-3");
  const auto row = [](const std::string& text) { return text.substr(text.find('\n') + 1); };
  const std::string runs = folder.write("runs.csv", good + row(bad) + row(unread)).string();
  std::ostringstream out, err;
  EXPECT_EQ(run_command({"validate", runs}, {.out = out, .err = err, .columns = 200, .err_columns = 80}),
            ExitCode::ok);
  EXPECT_NE(err.str().find("Z9000"), std::string::npos) << err.str();
  std::istringstream lines(err.str());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

// What no run can be is refused, in the words of `calibrate`: file, line, column, what was found and what is expected.
TEST(Validate, RefusesWhatCalibrateRefusesInTheSameWords) {
  struct Bad {
    const char *column, *value, *expected;
  };
  for (const Bad& bad : {Bad{"step_time_s", "1e-9", "a time of one whole step from 1e-06 to 1e+07 s"},
                         Bad{"step_time_s", "1e300", "a time of one whole step from 1e-06 to 1e+07 s"},
                         Bad{"step_time_s", "2.5", "which 64 x A100-SXM4-80GB need at their peak"},
                         Bad{"peak_memory_GiB", "1e300", "at most the 79.15 GiB of a A100-SXM4-80GB"},
                         Bad{"kv_heads", "7", "a divisor of heads = 40"}}) {
    const TempDir folder;
    const std::string good = example_with("step_time_s", "30");
    std::string changed = example_with("step_time_s", "30", "example-2");
    CsvTable table = parse_csv(changed, "changed");
    changed.clear();
    for (std::size_t i = 0; i < table.columns.size(); ++i)
      changed +=
          (i ? "," : "") + csv_field(table.columns[i] == bad.column ? bad.value : table.rows[0].cells[i]);
    const std::string runs = folder.write("runs.csv", good + changed + "\n").string();
    const std::string where = runs + ":3: " + bad.column + ": found ";
    const auto validated = call({"validate", runs}), calibrated = call({"calibrate", "--runs", runs});
    EXPECT_EQ(validated.code, ExitCode::ok);
    EXPECT_NE(validated.err.find("not predicted: " + where), std::string::npos) << validated.err;
    EXPECT_NE(validated.err.find(bad.expected), std::string::npos) << validated.err;
    EXPECT_NE(validated.out.find("2 runs, 1 of them predicted"), std::string::npos) << validated.out;
    EXPECT_EQ(calibrated.code, ExitCode::bad_input) << bad.column;
    EXPECT_NE(calibrated.err.find(where), std::string::npos) << calibrated.err;
    EXPECT_NE(calibrated.err.find(bad.expected), std::string::npos) << calibrated.err;
    const std::string alone = folder.write("good.csv", good).string();  // negative control
    EXPECT_EQ(call({"validate", alone}).err, "");
    EXPECT_EQ(call({"calibrate", "--runs", alone}).code, ExitCode::ok);
  }
}

TEST(Validate, TimesInAnotherUnitAreTold) {
  const TempDir folder;
  const auto told = [&](const char* step) {
    return call({"validate", folder.write("runs.csv", example_with("step_time_s", step)).string()}).err;
  };
  EXPECT_NE(told("31000").find("are the times seconds"), std::string::npos);
  EXPECT_EQ(told("280").find("are the times seconds"), std::string::npos);
}

TEST(Validate, ARepeatedNameIsToldAndTheOthersArePredicted) {
  const TempDir folder;
  const std::string row = example_with("", ""), other = example_with("", "", "example-2");
  const auto line = [](const std::string& text) { return text.substr(text.find('\n') + 1); };
  const std::string runs = folder.write("runs.csv", row + line(row) + line(other)).string();
  const std::string out = (folder.path() / "out.csv").string();
  const auto outcome = call({"validate", runs, "--predictions", out});
  EXPECT_EQ(outcome.code, ExitCode::ok);
  for (const std::string& said : {runs + ":3: run_id: found example-1", runs + ":2 has it and is predicted",
                                  std::string("rename this row, or remove it")})
    EXPECT_NE(outcome.err.find(said), std::string::npos) << outcome.err;
  const CsvTable table = read_csv(out);
  ASSERT_EQ(table.rows.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(table.cell(table.rows[i], "step_time_s").empty(), i == 1) << i;
}

TEST(Validate, TheToleranceDecidesTheExitCode) {
  const TempDir folder;
  const std::string slow = folder.write("slow.csv", example_with("step_time_s", "280")).string();
  EXPECT_EQ(call({"validate", slow}).code, ExitCode::ok);
  EXPECT_EQ(call({"validate", slow, "--max-error", "95"}).code, ExitCode::ok);
  const auto outside = call({"validate", slow, "--max-error", "50"});
  EXPECT_EQ(outside.code, ExitCode::outside_tolerance);
  EXPECT_NE(outside.err.find("tolerated 50 %"), std::string::npos) << outside.err;
}

TEST(Validate, BadInputIsRefusedAndNothingIsWritten) {
  const TempDir folder;
  const std::string out = (folder.path() / "out.csv").string();
  const std::string good = folder.write("good.csv", example_with("", "")).string();
  const std::string bad = folder.write("bad.csv", example_with("layers", "forty")).string();
  EXPECT_EQ(call({"validate"}).code, ExitCode::usage);
  const auto none = call({"validate", (folder.path() / "none.csv").string()});
  EXPECT_EQ(none.code, ExitCode::bad_input);
  EXPECT_NE(none.err.find("published runs are not part of sextant"), std::string::npos) << none.err;
  const auto outcome = call({"validate", bad, "--predictions", out});
  EXPECT_EQ(outcome.code, ExitCode::bad_input);
  EXPECT_NE(outcome.err.find("bad.csv:2"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("forty"), std::string::npos) << outcome.err;
  const auto twice = call({"validate", good, good, "--predictions", out});
  EXPECT_EQ(twice.code, ExitCode::bad_input);
  EXPECT_NE(twice.err.find("a name that no other row has"), std::string::npos) << twice.err;
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_NE(call({"validate", good, "--predictions", "/nonexistent/out.csv"}).code, ExitCode::ok);
}

// Tables of runs are told from others by their header; what is left out is said, and only a folder without any is refused.
TEST(Validate, OfAFolderTheTablesOfRunsAreTaken) {
  const TempDir folder;
  const std::string path = folder.path().string();
  folder.write("attention.csv", "source,gpu,kernel,tflops\na,H100,flash2,400\n");
  const auto none = call({"validate", path});
  EXPECT_EQ(none.code, ExitCode::bad_input);
  EXPECT_NE(none.err.find("attention.csv: line 1: found 4 columns"), std::string::npos) << none.err;
  std::filesystem::create_directory(folder.path() / "runs");
  folder.write("runs/b.csv", example_with("", "", "second"));
  folder.write("runs/empty.csv", example_with("", "").substr(0, example_with("", "").find('\n') + 1));
  folder.write("a.csv", example_with("", "", "first"));
  const auto outcome = call({"validate", path, "--json"}, 200);
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const auto answer = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(answer.at("runs").size(), 2U);
  EXPECT_EQ(answer.at("runs")[0].at("run_id"), "first");
  EXPECT_EQ(answer.at("runs")[1].at("run_id"), "second");
  ASSERT_EQ(answer.at("left_out").size(), 2U);
  for (const char* said : {"left out: ", "attention.csv", "of which these are missing: run_id, date",
                           "empty.csv: found a header and no row"})
    EXPECT_NE(outcome.err.find(said), std::string::npos) << outcome.err;
  // Given by name it is an error, which names what is missing and nothing else.
  const auto named = call({"validate", path + "/attention.csv"}, 200);
  EXPECT_EQ(named.code, ExitCode::bad_input);
  EXPECT_NE(named.err.find("virtual_stages"), std::string::npos) << named.err;
  EXPECT_EQ(named.err.find("gpu,"), std::string::npos) << named.err;
}

// A file that cannot be read is told in the end; the others are scored all the same.
TEST(Validate, ABadFileKeepsNoneFromTheOthers) {
  const TempDir folder;
  const std::string good = folder.write("good.csv", example_with("", "", "good")).string(),
                    bad = folder.write("bad.csv", "x,y\n1,2\n").string(),
                    missing = (folder.path() / "missing.csv").string(),
                    written = (folder.path() / "out.csv").string();
  const auto outcome = call({"validate", bad, good, missing, "--json", "--predictions", written}, 200);
  EXPECT_EQ(outcome.code, ExitCode::bad_input);
  for (const char* said : {"bad.csv: line 1: found 2 columns", "missing.csv: found no such file"})
    EXPECT_NE(outcome.err.find(said), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("good.csv"), std::string::npos) << outcome.err;
  const auto answer = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(answer.at("runs").size(), 1U);
  EXPECT_FALSE(answer.at("runs")[0].at("step_time_s").is_null());
  EXPECT_EQ(answer.at("bad").size(), 2U);
  EXPECT_TRUE(std::filesystem::exists(written));
  // None is good: no answer.
  const auto none = call({"validate", bad, missing}, 200);
  EXPECT_EQ(none.code, ExitCode::bad_input);
  EXPECT_TRUE(none.out.empty());
  EXPECT_NE(none.err.find("missing.csv"), std::string::npos) << none.err;
}

TEST(Validate, AHeaderWithoutRowsIsRefused) {
  const TempDir folder;
  const std::string header = example_with("", "").substr(0, example_with("", "").find('\n') + 1);
  const std::string file = folder.write("runs.csv", header).string();
  for (const auto& verb : {std::vector<std::string>{"validate", file}, {"calibrate", "--runs", file}}) {
    const auto outcome = call(verb);
    EXPECT_EQ(outcome.code, ExitCode::bad_input);
    EXPECT_NE(outcome.err.find("a header and no row"), std::string::npos) << outcome.err;
  }
  std::string semicolons = header;
  for (char& c : semicolons)
    if (c == ',') c = ';';
  const auto other = call({"validate", folder.write("semicolons.csv", semicolons).string()});
  EXPECT_NE(other.err.find("separated by commas"), std::string::npos) << other.err;
}

// Rows of one table: every vocabulary asked twice, under two names.
std::string asked_twice(int questions) {
  const CsvTable example = parse_csv(example_with("", ""), "example");
  std::string text;
  for (const std::string& column : example.columns) text += (text.empty() ? "" : ",") + column;
  for (int i = 0; i < 2 * questions; ++i) {
    text += '\n';
    for (std::size_t k = 0; k < example.columns.size(); ++k)
      text += (k ? "," : "") + csv_field(example.columns[k] == "run_id"  ? std::to_string(i)
                                         : example.columns[k] == "vocab" ? std::to_string(32000 + i / 2)
                                                                         : example.rows[0].cells[k]);
  }
  return text + '\n';
}

TEST(Validate, WhatIsAskedTwiceIsAnsweredOnceAndProgressIsTold) {
  const TempDir folder;
  const RunTables tables = read_run_tables({folder.write("runs.csv", asked_twice(200)).string()});
  const FrameworkMap map = load_framework_map(test::preset_dir());
  std::atomic<int> priced = 0;
  const PredictOptions options{
      .preset_dir = test::preset_dir(), .constants = nullptr, .adjust = [&](ResolvedRun&) { ++priced; }};
  std::vector<std::size_t> told;
  const auto once = predict_runs(tables.rows, map, options,
                                 {tables.alike, [&](std::size_t done) { told.push_back(done); }});
  EXPECT_EQ(priced, 200);
  EXPECT_FALSE(told.empty());
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  const auto each = predict_runs(tables.rows, map, options);
  EXPECT_EQ(priced, 600);
  ASSERT_EQ(once.size(), 400U);
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(once[i].run_id, std::to_string(i));
    EXPECT_EQ(once[i].run_id, each[i].run_id);
    EXPECT_EQ(once[i].step_s, each[i].step_s);
    EXPECT_EQ(once[i].memory_GiB, each[i].memory_GiB);
    EXPECT_EQ(once[i].note, each[i].note);
  }
  EXPECT_NE(once[0].step_s, once[2].step_s);
}

// A bar on a terminal once it takes more than half a second, nothing before.
TEST(Validate, LongWorkShowsHowFarItIs) {
  const TempDir folder;
  const auto told = [&](int questions) {
    std::ostringstream out, err;
    const std::string runs = folder.write("runs.csv", asked_twice(questions)).string();
    EXPECT_EQ(
        run_command({"validate", runs}, {.out = out, .err = err, .columns = 80, .err_is_terminal = true}),
        ExitCode::ok);
    return err.str();
  };
  EXPECT_EQ(told(5), "");
  const std::string bar = told(10'000);
  EXPECT_NE(bar.find("predicting ["), std::string::npos) << bar;
  EXPECT_NE(bar.find(" left"), std::string::npos) << bar;
}

}  // namespace
}  // namespace sextant
