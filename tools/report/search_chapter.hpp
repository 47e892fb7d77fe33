// The answer of `sextant plan --json` as a chapter: recommendation, alternatives, scaling curve, Pareto front, why others lost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/report/answer_view.hpp"
#include "tools/report/report.hpp"

namespace sextant {

// By which add_chapter knows the section of a layout's own figures.
inline constexpr const char* kLayoutTitle = "The layout";

ReportChapter search_chapter(const AnswerView&);

// What became of the layouts of a search ("outcomes", "examples"), of plan and explain. No table where the answer has none.
ReportSection outcomes_section(const AnswerView&);
// Of the same question, the same text.
std::string question_id(const std::string& model, std::int64_t gpus, const std::string& stack,
                        std::int64_t seq_len, std::int64_t global_batch);
// Title and subtitle of what was asked.
void set_question(const AnswerView&, ReportChapter&);
// The tiles of a prediction as answers have it.
std::vector<ReportTile> prediction_tiles(const AnswerView&);

}  // namespace sextant
