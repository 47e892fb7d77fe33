// The answer of `sextant plan --json` as a chapter: recommendation, alternatives, scaling curve, Pareto front, why others lost.
#pragma once

#include <vector>

#include "tools/report/answer_view.hpp"
#include "tools/report/report.hpp"

namespace sextant {

ReportChapter search_chapter(const AnswerView&);

// What became of the layouts of a search ("outcomes", "examples"), of plan and explain. No table where the answer has none.
ReportSection outcomes_section(const AnswerView&);
// Title and subtitle of what was asked.
void set_question(const AnswerView&, ReportChapter&);
// The tiles of a prediction as answers have it.
std::vector<ReportTile> prediction_tiles(const AnswerView&);

}  // namespace sextant
