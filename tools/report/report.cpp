#include "tools/report/report.hpp"

#include <algorithm>
#include <utility>

namespace sextant {

void add_chapter(Report& report, ReportChapter chapter) {
  const auto same = std::ranges::find_if(report.chapters, [&](const ReportChapter& other) {
    if (!chapter.key.empty() && other.key == chapter.key) return true;
    return !chapter.question.empty() && other.question == chapter.question &&
           (chapter.key.empty() || other.key.empty());
  });
  if (same == report.chapters.end()) {
    report.chapters.push_back(std::move(chapter));
    return;
  }
  same->source += "; " + chapter.source;
  for (ReportSection& section : chapter.sections) {
    const auto has =
        std::ranges::any_of(same->sections, [&](const ReportSection& s) { return s.title == section.title; });
    if (!has) same->sections.push_back(std::move(section));
  }
}

}  // namespace sextant
