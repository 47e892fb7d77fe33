// A plan file as a chapter: the layout, what it is predicted to do, and, simulated anew, memory, time, timeline and neighbours.
#pragma once

#include <filesystem>
#include <string>

#include "tools/inputs/inputs.hpp"
#include "tools/report/report.hpp"

namespace sextant {

// What beside the files a report is told.
struct ReportContext {
  std::filesystem::path presets;
  std::string calibration, profile, tokens;  // of --calibration, --profile, --tokens; empty: none
};

ReportChapter plan_chapter(const std::string& file, const ReportContext&);

// "llama-2-70b on 128 x H100-SXM5-80GB", and the rest of the question.
std::string title_of(const Question&);
std::string subtitle_of(const Question&);

}  // namespace sextant
