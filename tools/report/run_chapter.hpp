// A run as a chapter: the folder of `sextant run -o`, or the answer of `sextant run --json`.
#pragma once

#include <string>

#include "tools/report/answer_view.hpp"
#include "tools/report/plan_chapter.hpp"
#include "tools/report/report.hpp"

namespace sextant {

ReportChapter run_folder_chapter(const std::string& folder, const ReportContext&);
ReportChapter run_chapter(const AnswerView&);

}  // namespace sextant
