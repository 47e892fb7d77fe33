// `sextant report`: every kind of answer becomes a page that holds its figures; what a name contains cannot become markup; what is no
// answer is refused with file, key and what was expected. How pages look is tested in a browser (tests/tools/report).
#include "tests/tools/verbs/bad_input.hpp"
#include "tools/report/html_page.hpp"
#include "tools/report/page_files.hpp"

namespace sextant {
namespace {

using namespace bad_input;

class ReportVerb : public BadInput {
 protected:
  void SetUp() override {
    if (page_files().library.empty()) GTEST_SKIP() << "this build has no charts: libjs-d3 was not found";
  }
  static std::string page_of(const Words& answers) {
    const Called made = call(Words{"report"} + answers + Words{"-o", "page.html"});
    EXPECT_EQ(made.code, ExitCode::ok) << made.err;
    return text_of("page.html");
  }
  static void keep(const std::string& file, const Words& command) {
    const Called made = call(command + Words{"--json"});
    ASSERT_EQ(made.code, ExitCode::ok) << made.err;
    write(file, made.out);
  }
  static bool has(const std::string& page, const std::string& text) {
    return page.find(text) != std::string::npos;
  }
  // The charts' data, as the page's script reads it.
  static json charts_of(const std::string& page) {
    const std::string begin = "<script type=\"application/json\" id=\"charts\">";
    const std::size_t at = page.find(begin) + begin.size();
    return json::parse(page.substr(at, page.find("</script>", at) - at));
  }
  static int charts_of_kind(const json& charts, const std::string& kind) {
    return static_cast<int>(
        std::ranges::count_if(charts, [&](const json& c) { return c.at("kind") == kind; }));
  }
};

TEST_F(ReportVerb, APlanHasItsFiguresAndFourCharts) {
  const std::string page = page_of({"plan.json"});
  for (const char* text : {"llama-2-7b on 8 × A100-SXM4-80GB", "Memory per stage", "Where the step goes",
                           "One step on every stage", "One change away", "tp2.pp2.vp1.cp1.dp2.z1.mbs4"})
    EXPECT_TRUE(has(page, text)) << text;
  const json charts = charts_of(page);
  EXPECT_EQ(charts_of_kind(charts, "stacks"), 1);
  EXPECT_EQ(charts_of_kind(charts, "bars"), 2);
  ASSERT_EQ(charts_of_kind(charts, "timeline"), 1);
  EXPECT_EQ(charts_of_kind(charts, "pie"), 0);  // negative control
}

// What the page shows is what simulate says.
TEST_F(ReportVerb, ThePlansMemoryAndTimeAreThoseOfSimulate) {
  const json simulated = json::parse(call({"simulate", "plan.json", "--json"}).out);
  const json charts = charts_of(page_of({"plan.json"}));
  const json& stacks = *std::ranges::find_if(charts, [](const json& c) { return c.at("kind") == "stacks"; });
  for (std::size_t stage = 0; stage < 2; ++stage) {
    double sum = 0;
    for (const json& series : stacks.at("series")) sum += series.at("values").at(stage).get<double>();
    EXPECT_NEAR(sum, simulated.at("stages").at(stage).at("memory_GiB").at("needed").get<double>(), 1e-9);
  }
  EXPECT_NEAR(stacks.at("limit").at("value").get<double>(),
              simulated.at("prediction").at("available_memory_GiB"), 1e-9);
  const json& timeline =
      *std::ranges::find_if(charts, [](const json& c) { return c.at("kind") == "timeline"; });
  double last = 0;
  for (const json& row : timeline.at("rows")) {
    const json& blocks = row.at("blocks");
    ASSERT_EQ(blocks.size() % 5, 0U);
    double at = 0;
    for (std::size_t i = 0; i < blocks.size(); i += 5)
      at += blocks[i].get<double>() + blocks[i + 1].get<double>();
    last = std::max(last, at);
  }
  EXPECT_NEAR(last, 1e6, 100);  // the step ends with the last block
}

TEST_F(ReportVerb, AnswersOfEveryVerbBecomePages) {
  keep("search.json", search({"--seq-len", "4096", "--global-batch", "64"}));
  keep("front.json", search({"--seq-len", "4096", "--global-batch", "64", "--pareto"}));
  keep("scale.json", search({"--seq-len", "4096", "--global-batch", "64", "--scale", "4,8"}));
  keep("simulate.json", {"simulate", "plan.json"});
  keep("explain.json", {"explain", "plan.json", "--budget-s", "1"});
  keep("validate.json", {"validate", SEXTANT_SOURCE_DIR "/tests/golden/nvidia_published.csv"});
  const std::pair<const char*, const char*> wanted[] = {
      {"search.json", "What else to try"},
      {"search.json", "Why others lost"},
      {"front.json", "Memory against time"},
      {"scale.json", "Scaling curve"},
      {"simulate.json", "Memory per stage"},
      {"explain.json", "Runners-up"},
      {"validate.json", "Error of predicted step times"},
      {"validate.json", "Every run, predicted and measured"}};
  for (const auto& [file, title] : wanted) {
    const std::string page = page_of({file});
    EXPECT_TRUE(has(page, title)) << file;
    EXPECT_FALSE(charts_of(page).empty()) << file;
  }
  EXPECT_FALSE(has(page_of({"scale.json"}), "Memory against time"));  // negative control
  // Answers to one question stand in one chapter.
  const Called together =
      call({"report", "search.json", "front.json", "scale.json", "-o", "page.html", "--json"});
  EXPECT_EQ(json::parse(together.out).at("chapters").size(), 1U) << together.out;
}

TEST_F(ReportVerb, ARunHasLossThroughputAndBothTimelines) {
  for (const Words& command :
       {Words{"simulate", "--model", "stories-260k", "--cluster", "laptop", "--stack", "sextant", "--seq-len",
              "32", "--global-batch", "4", "--plan", "dp2.z1.mbs2", "-o", "two.json"},
        Words{"run", "two.json", "--steps", "4", "-o", "done"}})
    ASSERT_EQ(call(command).code, ExitCode::ok);
  const std::string page = page_of({"done"});
  const json charts = charts_of(page);
  EXPECT_EQ(charts_of_kind(charts, "lines"), 3);
  const json& timeline =
      *std::ranges::find_if(charts, [](const json& c) { return c.at("kind") == "timeline"; });
  std::set<std::string> of;
  for (const json& row : timeline.at("rows")) of.insert(row.at("of").get<std::string>());
  EXPECT_EQ(of, (std::set<std::string>{"measured", "predicted"}));
  EXPECT_EQ(charts[0].at("lines").at(0).at("points").size(), 4U);
  // The last line of a run that was ended may be cut; one in the middle may not.
  const std::string steps = text_of("done/steps.jsonl");
  write("done/steps.jsonl", steps + "{\"step\": 4, \"lo");
  page_of({"done"});
  write("done/steps.jsonl", "{\"step\": 0, \"lo\n" + steps);
  bad_file({"report", "done", "-o", "new.html"}, {"done/steps.jsonl:1", "no JSON object"});
}

TEST_F(ReportVerb, NamesCannotBecomeMarkup) {
  json j = whole_;
  j["model"]["name"] = "<img src=x onerror=alert(1)></script><script>alert(2)</script>";
  write("named.json", j);
  keep("simulate.json", {"simulate", "plan.json"});
  json answer = json::parse(text_of("simulate.json"));
  answer["notes"] = {"</script><b>bold</b>"};
  answer["prediction"]["key"] = "<u>key</u>";
  write("simulate.json", answer);
  const std::string page = page_of({"simulate.json"});
  EXPECT_FALSE(has(page, "<b>bold</b>"));
  EXPECT_FALSE(has(page, "<u>key</u>"));
  EXPECT_TRUE(has(page, "&lt;b&gt;bold&lt;/b&gt;"));
  EXPECT_EQ(html_text("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
  EXPECT_EQ(script_json({{"name", "</script>"}}), R"({"name":"\u003c/script>"})");
  EXPECT_EQ(json::parse(script_json({{"name", "</script>"}})).at("name"), "</script>");
}

// One file: nothing is loaded from anywhere.
TEST_F(ReportVerb, NeedsNoNetwork) {
  const std::string page = page_of({"plan.json"});
  for (const char* text : {"<link", "src=", "@import", "url(http"}) EXPECT_FALSE(has(page, text)) << text;
  EXPECT_TRUE(has(page, "Michael Bostock"));  // the library's licence goes with it
  EXPECT_LT(page.size(), 2'000'000U);
}

TEST_F(ReportVerb, RefusesWhatIsNoAnswer) {
  usage({"report"}, {"an answer is missing"});
  usage({"report", "plan.json"}, {"-o is missing"});
  bad_file({"report", "none.json", "-o", "new.html"}, {"none.json"});
  bad_file({"report", "folder", "-o", "new.html"}, {"folder", "without steps.jsonl", "sextant run -o"});
  bad_file({"report", "cluster.json", "-o", "new.html"}, {"a cluster", "--cluster takes it"});
  bad_file({"report", "runs.csv", "-o", "new.html"}, {"a table of measured runs", "sextant validate take"});
  write("other.json", json{{"schema", "sextant.doctor/1"}});
  bad_file({"report", "other.json", "-o", "new.html"},
           {"other.json", "sextant.doctor/1", "expected a plan file"});
  write("list.json", json{1, 2});
  bad_file({"report", "list.json", "-o", "new.html"}, {"JSON without a schema"});
  bad_file({"report", "plan.json", "-o", "folder"}, {"folder"});
  refused({"report", "plan.json", "-o", "plan.json"}, ExitCode::usage, {"plan.json"});
}

TEST_F(ReportVerb, ABrokenAnswerIsNamedByItsKey) {
  keep("simulate.json", {"simulate", "plan.json"});
  const json whole = json::parse(text_of("simulate.json"));
  json j = whole;
  j["prediction"].erase("step_time_s");
  write("broken.json", j);
  bad_file({"report", "broken.json", "-o", "new.html"},
           {"broken.json", "prediction.step_time_s", "missing", "a number"});
  j = whole;
  j["stages"][1]["memory_GiB"]["needed"] = "much";
  write("broken.json", j);
  bad_file({"report", "broken.json", "-o", "new.html"}, {"stages[1].memory_GiB.needed", "much", "a number"});
  // An answer to another option is told by its content.
  bad_file(with_model("simulate.json"),
           {"an answer of 'sextant simulate --json'", "sextant report takes it"});
}

}  // namespace
}  // namespace sextant
