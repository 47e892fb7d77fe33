// The parts of a report's page, which the build puts into the program: the files of tools/report/page/ and the library of charts.
#pragma once

#include <string_view>

namespace sextant {

struct PageFiles {
  std::string_view page;     // HTML with {{marks}}
  std::string_view style;    // CSS
  std::string_view scripts;  // the charts
  std::string_view library;  // D3; empty where the build had none
  std::string_view licence;  // of the library
};
// tools/report/page/embed.cmake makes it.
PageFiles page_files();

}  // namespace sextant
