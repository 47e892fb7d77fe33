// Manual pages in roff, made of what --help prints: sextant(1), and sextant-VERB(1) of each verb.
#pragma once

#include <string>
#include <vector>

#include "tools/verbs/command.hpp"

namespace sextant {

struct ManPage {
  std::string file;  // "sextant-plan.1"
  std::string text;  // roff of man(7)
};

// version: "0.1.0"; date: "2026-11-27", in the foot of each page. The overview comes first.
std::vector<ManPage> man_pages(const CommandLine&, const std::string& version, const std::string& date);

}  // namespace sextant
