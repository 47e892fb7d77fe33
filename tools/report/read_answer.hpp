// One ANSWER of `sextant report` as a chapter: what it is is told by its content.
#pragma once

#include <string>

#include "tools/report/plan_chapter.hpp"
#include "tools/report/report.hpp"

namespace sextant {

// A file (a plan file, a profile, what a verb printed with --json) or the folder of a run. Throws ConfigError with file, key, value and
// what was expected.
ReportChapter read_answer(const std::string& path, const ReportContext&);

}  // namespace sextant
