// The command in this process: exit codes and messages.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tools/verbs/help.hpp"

namespace sextant {
namespace {

// A folder of presets of our own, so that these tests do not depend on the built-in ones.
struct PresetFolder {
  TempDir dir;
  std::filesystem::path path = dir.path();
  PresetFolder() {
    std::filesystem::create_directories(path / "models");
    std::filesystem::create_directories(path / "devices");
    std::ofstream(path / "models/tiny-7b.json") << R"({"name": "tiny-7b", "hidden": 64})";
    std::ofstream(path / "devices/fast.json")
        << R"({"title": "a fast one", "aliases": ["quick"], "memory_GiB": {"value": 79.25, "source": "driver", "date": "2024-05"}, "peak": {"bf16_TFLOPS": 312}})";
    std::ofstream(path / "devices/torn.json") << R"({"memory_GiB": {"va)";
  }
};

TEST(Command, VersionAndHelp) {
  EXPECT_EQ(call({"--version"}).out.rfind("sextant ", 0), 0U);
  const auto help = call({"--help"});
  EXPECT_EQ(help.code, ExitCode::ok);
  for (const auto& verb : verbs())
    EXPECT_NE(help.out.find("\n  " + verb.name + " "), std::string::npos) << verb.name;
  const auto words = [](std::istringstream text) {
    std::string out, word;
    while (text >> word) out += word + ' ';
    return out;
  };
  for (const auto& [code, meaning] : exit_code_meanings())
    EXPECT_NE(words(std::istringstream(help.out)).find(words(std::istringstream(meaning))), std::string::npos)
        << static_cast<int>(code);
  EXPECT_EQ(call({"help", "doctor"}).out, call({"doctor", "--help"}).out);
}

// As std::cerr does, this counts what is written with one call: ranks of a job share one stderr.
struct Writes : std::stringbuf {
  int n = 0;
  int sync() override {
    ++n;
    return 0;
  }
};

TEST(Command, AnErrorIsWrittenAsAWhole) {
  const TempDir dir;
  const std::string bad = dir.write("bad.json", R"({"schema": 1, "plan": 2, "modle": 3})").string();
  for (const std::vector<std::string>& words : {std::vector<std::string>{"run", bad}, {"run"}}) {
    Writes written;
    std::ostream err(&written);
    err << std::unitbuf;
    std::ostringstream out;
    EXPECT_NE(run_command(words, {.out = out, .err = err}), ExitCode::ok);
    EXPECT_GT(std::ranges::count(written.str(), '\n'), 1) << written.str();
    EXPECT_EQ(written.n, 1) << written.str();
  }
}

TEST(Command, NoArgumentsIsAUsageErrorOnStderr) {
  const auto outcome = call({});
  EXPECT_EQ(outcome.code, ExitCode::usage);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("usage: sextant VERB"), std::string::npos);
}

TEST(Command, EveryVerbsHelpFitsAndHasExamples) {
  for (const auto& verb : verbs()) {
    const auto help = call({verb.name, "--help"}, 80);
    EXPECT_EQ(help.code, ExitCode::ok) << verb.name;
    EXPECT_FALSE(verb.examples.empty()) << verb.name;
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(display_width(line), 80) << verb.name << ": " << line;
    }
  }
}

TEST(Command, EveryVerbsJsonIsDocumented) {
  std::ostringstream docs;
  docs << std::ifstream(std::string(SEXTANT_SOURCE_DIR) + "/docs/json.md").rdbuf();
  for (const auto& verb : verbs())
    EXPECT_TRUE(docs.str().find("## sextant." + verb.name + "/") != std::string::npos ||
                docs.str().find("## sextant." + verb.name + ".") != std::string::npos)  // of its subcommands
        << verb.name;
  EXPECT_EQ(docs.str().find("sextant.no-such-verb"), std::string::npos);
}

TEST(Command, EveryVerbIsCalledByATest) {
  std::ostringstream tests;
  for (const auto& file : std::filesystem::recursive_directory_iterator(SEXTANT_SOURCE_DIR "/tests/tools"))
    if (file.path().filename().string().ends_with("_test.cpp")) tests << std::ifstream(file.path()).rdbuf();
  const auto called = [&](const std::string& verb) {
    return tests.str().find("{\"" + verb + "\"") != std::string::npos;
  };
  for (const auto& verb : verbs()) EXPECT_TRUE(called(verb.name)) << verb.name;
  EXPECT_FALSE(called("no-such-verb"));
}

TEST(Command, SuggestsTheNearestVerbAndFlag) {
  const auto verb = call({"preset"});
  EXPECT_EQ(verb.code, ExitCode::usage);
  EXPECT_NE(verb.err.find("did you mean 'sextant presets'?"), std::string::npos) << verb.err;
  const auto far = call({"xylophone"});
  EXPECT_EQ(far.err.find("did you mean"), std::string::npos);
  EXPECT_NE(far.err.find("verbs: "), std::string::npos);
  const auto flag = call({"presets", "--jsn"});
  EXPECT_EQ(flag.code, ExitCode::usage);
  EXPECT_NE(flag.err.find("no option --jsn\n  did you mean --json?"), std::string::npos) << flag.err;
  const auto before = call({"--json", "presets"});
  EXPECT_EQ(before.code, ExitCode::usage);
  EXPECT_NE(before.err.find("options follow the verb"), std::string::npos);
}

TEST(Command, BadValuesAreUsageErrorsInOurWords) {
  const auto color = call({"doctor", "--color", "alway"});
  EXPECT_EQ(color.code, ExitCode::usage);
  EXPECT_NE(color.err.find("--color: found alway, expected one of auto, always, never"), std::string::npos)
      << color.err;
  EXPECT_NE(color.err.find("did you mean always?"), std::string::npos);
  const auto missing = call({"doctor", "--color"});
  EXPECT_EQ(missing.code, ExitCode::usage);
  EXPECT_NE(missing.err.find("--color needs a value"), std::string::npos) << missing.err;
  const auto twice = call({"doctor", "--color", "never", "--color", "never"});
  EXPECT_EQ(twice.code, ExitCode::usage);
  EXPECT_NE(twice.err.find("--color is given more than once"), std::string::npos) << twice.err;
  const auto shell = call({"completion"});
  EXPECT_EQ(shell.code, ExitCode::usage);
  EXPECT_NE(shell.err.find("shell is missing"), std::string::npos) << shell.err;
  const auto extra = call({"doctor", "now"});
  EXPECT_EQ(extra.code, ExitCode::usage);
  EXPECT_NE(extra.err.find("unexpected argument 'now'"), std::string::npos) << extra.err;
}

TEST(Command, NumbersAreCheckedAgainstTheirBounds) {
  const auto parse = [](const std::string& text) {
    CLI::App app;
    int value = 2048;
    add_number(app,
               {.flag = "--seq-len", .metavar = "N", .text = "", .unit = "tokens", .min = 1, .max = 1048576},
               value);
    app.parse(std::vector<std::string>{"--seq-len=" + text});
    return value;
  };
  EXPECT_EQ(parse("4096"), 4096);
  for (const char* bad : {"0", "-3", "1048577", "4k", "99999999999", "nan", "4096.5", ""}) {
    try {
      parse(bad);
      ADD_FAILURE() << bad << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("a whole number (tokens) from 1 to 1048576"),
                std::string::npos)
          << error.what();
    } catch (const CLI::ParseError&) {  // an empty value is the library's to refuse
      EXPECT_STREQ(bad, "");
    }
  }
}

TEST(Presets, ListsAndShowsWithSources) {
  const PresetFolder folder;
  const auto all = call({"presets", "--presets", folder.path.string()});
  EXPECT_EQ(all.code, ExitCode::ok) << all.err;
  EXPECT_NE(all.out.find("tiny-7b"), std::string::npos);
  EXPECT_EQ(call({"presets", "models", "--names", "--presets", folder.path.string()}).out, "tiny-7b\n");
  const auto json = nlohmann::json::parse(call({"presets", "--json", "--presets", folder.path.string()}).out);
  EXPECT_EQ(json.at("schema"), "sextant.presets/1");
  EXPECT_EQ(json.at("models"), nlohmann::json::array({"tiny-7b"}));
  const auto shown = call({"presets", "show", "fast", "--presets", folder.path.string()});
  EXPECT_NE(shown.out.find("memory_GiB        79.25"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("\n  1. driver, 2024-05\n"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("peak.bf16_TFLOPS  312"), std::string::npos) << shown.out;
}

TEST(Presets, AreFoundByAliasAndInAnyCase) {
  const PresetFolder folder;
  const auto show = [&](const std::string& name) {
    return call({"presets", "show", name, "--presets", folder.path.string()});
  };
  EXPECT_EQ(show("Quick").out, show("fast").out);
  EXPECT_EQ(show("FAST").out, show("fast").out);
  EXPECT_EQ(show("quic").code, ExitCode::usage);
  const auto table = call({"presets", "devices", "--presets", folder.path.string()});
  EXPECT_NE(table.out.find("fast  a fast one  quick"), std::string::npos) << table.out;
}

TEST(Presets, RefusesWhatIsNotThere) {
  const PresetFolder folder;
  const auto unknown = call({"presets", "show", "tiny7b", "--presets", folder.path.string()});
  EXPECT_EQ(unknown.code, ExitCode::usage);
  EXPECT_NE(unknown.err.find("did you mean tiny-7b?"), std::string::npos) << unknown.err;
  const auto part = call({"presets", "show", "7b", "--presets", folder.path.string()}),
             known = call({"presets", "show", "tiny", "--presets", folder.path.string()});
  EXPECT_NE(known.err.find("did you mean tiny-7b?"), std::string::npos) << known.err;
  EXPECT_EQ(part.err.find("did you mean"), std::string::npos) << part.err;  // two letters tell too little
  EXPECT_EQ(call({"presets", "--presets", "/nonexistent"}).code, ExitCode::usage);
  const auto torn = call({"presets", "show", "torn", "--presets", folder.path.string()});
  EXPECT_EQ(torn.code, ExitCode::bad_input);
  EXPECT_NE(torn.err.find("torn.json"), std::string::npos);
  EXPECT_EQ(call({"presets", "modles", "--presets", folder.path.string()}).code, ExitCode::usage);
}

TEST(Doctor, AnswersAsTextAndAsJson) {
  const PresetFolder folder;
  const auto text = call({"doctor", "--presets", folder.path.string()});
  EXPECT_EQ(text.code, ExitCode::ok) << text.out << text.err;
  const auto json = nlohmann::json::parse(call({"doctor", "--json", "--presets", folder.path.string()}).out);
  EXPECT_EQ(json.at("schema"), "sextant.doctor/1");
  EXPECT_GE(json.at("machine").at("cpu_threads"), 1);
  EXPECT_GT(json.at("machine").at("memory_GiB"), 0.1);
  for (const auto& check : json.at("checks")) {
    EXPECT_TRUE((std::set<std::string>{"ok", "absent", "problem"}).count(check.at("status"))) << check;
    // What is not well has advice.
    if (check.at("status") != "ok") {
      EXPECT_NE(check.at("advice"), "") << check;
    }
  }
}

// The frameworks of the exports, of the python that SEXTANT_PYTHON names.
TEST(Doctor, ListsExportTargets) {
  const PresetFolder folder;
  const TempDir dir;
  const auto python = dir.write("python", "#!/bin/sh\nprintf '/a/python\\t3.12.1\\ndeepspeed\\t0.19.8\\n'\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  const auto asked = [&](const std::string& program) {
    ::setenv("SEXTANT_PYTHON", program.c_str(), 1);
    const auto json =
        nlohmann::json::parse(call({"doctor", "--json", "--presets", folder.path.string()}).out);
    const auto text = call({"doctor", "--presets", folder.path.string()}).out;
    ::unsetenv("SEXTANT_PYTHON");
    return std::pair(json.at("export"), text);
  };
  const auto [found, text] = asked(python.string());
  EXPECT_EQ(found.at("python"), "/a/python");
  EXPECT_EQ(found.at("python_version"), "3.12.1");
  for (const auto& target : found.at("targets"))
    if (target.at("name") != "sextant") {
      EXPECT_EQ(target.at("installed"), target.at("name") == "deepspeed" ? "0.19.8" : "") << target;
    }
  EXPECT_NE(text.find("0.19.8"), std::string::npos) << text;
  EXPECT_NE(text.find("/a/python"), std::string::npos) << text;
  const auto [none, silent] = asked((dir.path() / "no-such-python").string());
  EXPECT_EQ(none.at("python"), "");
  EXPECT_NE(silent.find("no-such-python"), std::string::npos) << silent;
}

TEST(Doctor, MissingPresetsAreAProblem) {
  const TempDir empty;
  const auto outcome = call({"doctor", "--presets", empty.path().string()});
  EXPECT_EQ(outcome.code, ExitCode::bad_input);
  EXPECT_NE(outcome.out.find("presets         problem"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace sextant
