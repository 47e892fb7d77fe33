// Answers of --json as chapters, one function for each verb.
#pragma once

#include "core/timeline/work_profile.hpp"
#include "tools/report/answer_view.hpp"
#include "tools/report/report.hpp"

namespace sextant {

ReportChapter simulate_chapter(const AnswerView&);
ReportChapter explain_chapter(const AnswerView&);
ReportChapter compare_chapter(const AnswerView&);
ReportChapter validate_chapter(const AnswerView&);
ReportChapter calibrate_chapter(const AnswerView&);
ReportChapter profile_chapter(const WorkProfile&);

// Predicted against measured by part of the step and by operations, of an entry of compare's "runs[]" or run's "comparison".
std::vector<ReportSection> comparison_sections(const AnswerView&);

}  // namespace sextant
