// What does a report say? Chapters, one for each layout, run or table that was given; sections of words, numbers, a chart and the
// tables that hold what the chart shows, for keyboards, screen readers and print. Values only: html_page makes the file.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace sextant {

struct ReportColumn {
  std::string header;  // with its unit
  bool number = true;  // to be aligned at the right
};
struct ReportTable {
  std::string caption;
  std::vector<ReportColumn> columns;
  std::vector<std::vector<std::string>> rows = {};  // as many cells as columns
  int emphasized = -1;                              // row
};

// A number that people look for first: "Step time", "28.43 s", "25.61 to 31.56 s in nine of ten cases".
struct ReportTile {
  std::string what, value, note;
};

struct ReportSection {
  std::string title;
  std::string lead;  // what it says, in a sentence or two
  std::vector<ReportTile> tiles = {};
  nlohmann::ordered_json chart = {};  // tools/report/charts.hpp; null: none
  std::vector<ReportTable> tables = {};
  std::vector<std::string> notes = {};
  bool table_open = false;  // what a reader should see without a click
};

struct ReportChapter {
  std::string title, subtitle;
  std::string key;       // of the layout: what is known of the same one stands in the same chapter
  std::string question;  // model, GPUs, software and batch: so does what is known of the question
  std::string source;    // the file, and who wrote it
  std::vector<ReportSection> sections = {};
};

struct Report {
  std::string title;
  std::string made;  // by which version and when
  std::vector<ReportChapter> chapters = {};
};

// Adds a chapter, or what it has that the chapter of the same layout, or of the same question where one is of no layout, has not.
void add_chapter(Report&, ReportChapter);

}  // namespace sextant
