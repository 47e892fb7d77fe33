#include <utility>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "tools/report/answer_chapters.hpp"
#include "tools/report/quantity_text.hpp"
#include "tools/report/search_chapter.hpp"
#include "tools/report/step_sections.hpp"

namespace sextant {

ReportChapter simulate_chapter(const AnswerView& answer) {
  if (!answer.has("prediction"))
    return {
        .title = "Simulated run",
        .subtitle = "sextant simulate --events",
        .key = {},
        .question = {},
        .source = {},
        .sections = {{.title = "Not shown",
                      .lead = "A report has no charts of --events yet: its decisions stand in the answer."}}};
  const AnswerView p = answer.at("prediction");
  ReportChapter out;
  out.title = p.text("key");
  out.key = out.title;
  out.subtitle = fmt::format("simulated: {} operations", answer.count("operations"));
  ReportSection head{.title = kLayoutTitle, .lead = "What this layout is predicted to do."};
  head.tiles = prediction_tiles(p);
  for (const std::string& note : answer.texts("notes")) head.notes.push_back(note);
  out.sections.push_back(std::move(head));

  std::vector<StageHolds> holds;
  ChapterParts parts{{}, p.number("step_time_s"), {}};
  for (const AnswerView& stage : answer.items("stages")) {
    const AnswerView memory = stage.at("memory_GiB");
    // Answers of before there was `needed` count all of the reserve.
    const double needed = memory.has("needed") ? memory.number("needed") : memory.number("reserved");
    StageHolds one{fmt::format("{}", stage.count("stage")), {}, needed};
    for (const auto& [key, GiB] : stage.numbers("memory_GiB"))
      if (key != "reserved" && key != "needed" && key != "allocated" && key != "host")
        one.GiB.emplace_back(words(key), GiB);
    one.GiB.emplace_back("context and libraries", needed - memory.number("allocated"));
    holds.push_back(std::move(one));
    auto& seconds = parts.stages.emplace_back();
    for (const auto& [key, value] : stage.numbers("time_s")) seconds.emplace_back(part_text(key), value);
  }
  out.sections.push_back(memory_section(holds, p.number("available_memory_GiB")));
  for (const auto& [key, seconds] : answer.numbers("breakdown_s"))
    parts.mean.emplace_back(part_text(key), seconds);
  parts.mean.emplace_back("stragglers and host", answer.number_or("stragglers_and_host_s", 0));
  out.sections.push_back(time_section(parts));
  return out;
}

}  // namespace sextant
