// A report as one HTML file that needs no network: words and tables stand in the page itself, charts are drawn from the data in it.
#pragma once

#include <string>
#include <string_view>

#include "tools/report/report.hpp"

namespace sextant {

// Throws BackendError where this build has no library of charts.
std::string html_page(const Report&);

std::string html_text(std::string_view);  // with & < > " ' escaped
// JSON that may stand in a <script>: no "<" in it.
std::string script_json(const nlohmann::ordered_json&);

}  // namespace sextant
