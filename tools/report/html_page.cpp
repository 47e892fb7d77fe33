#include "tools/report/html_page.hpp"

#include <utility>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "tools/report/page_files.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

void add_table(std::string& out, const ReportTable& table) {
  out += "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" + html_text(table.caption) +
         "\"><table><caption>" + html_text(table.caption) + "</caption>\n<thead><tr>";
  const auto kind = [&](std::size_t i) { return table.columns[i].number ? " class=\"n\"" : ""; };
  for (std::size_t i = 0; i < table.columns.size(); ++i)
    out += fmt::format("<th scope=\"col\"{}>{}</th>", kind(i), html_text(table.columns[i].header));
  out += "</tr></thead>\n<tbody>\n";
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    const auto& row = table.rows[r];
    SEXTANT_CHECK(row.size() == table.columns.size(), "a row of a table has a cell for every column");
    out += static_cast<int>(r) == table.emphasized ? "<tr class=\"main\">" : "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i)
      out += fmt::format("<td{}>{}</td>", kind(i), html_text(row[i]));
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
}

void add_tiles(std::string& out, const std::vector<ReportTile>& tiles) {
  out += "<dl class=\"tiles\">\n";
  for (const ReportTile& tile : tiles)
    out += fmt::format("<div><dt>{}</dt><dd><b>{}</b><span>{}</span></dd></div>\n", html_text(tile.what),
                       html_text(tile.value), html_text(tile.note));
  out += "</dl>\n";
}

// `head`: the element of its title.
void add_section(std::string& out, const ReportSection& section, const std::string& id, const char* head,
                 Json& charts) {
  out += fmt::format(
      "<section id=\"{}\" aria-labelledby=\"{}-title\"><{} class=\"section\" id=\"{}-title\">{}</{}>\n", id,
      id, head, id, html_text(section.title), head);
  if (!section.lead.empty()) out += "<p class=\"lead\">" + html_text(section.lead) + "</p>\n";
  if (!section.tiles.empty()) add_tiles(out, section.tiles);
  if (!section.chart.is_null()) {
    const auto about = section.chart.value("about", std::string());
    out += fmt::format(
        "<figure><div class=\"chart\" data-chart=\"{}\"></div><figcaption>{}</figcaption></figure>\n",
        charts.size(), html_text(about));
    charts.push_back(section.chart);
  }
  if (!section.tables.empty()) {
    if (!section.table_open)
      out +=
          fmt::format("<details><summary>Table: {}</summary>\n", html_text(section.tables.front().caption));
    for (const ReportTable& table : section.tables) add_table(out, table);
    if (!section.table_open) out += "</details>\n";
  }
  if (!section.notes.empty()) {
    out += "<ul class=\"notes\">\n";
    for (const std::string& note : section.notes) out += "<li>" + html_text(note) + "</li>\n";
    out += "</ul>\n";
  }
  out += "</section>\n";
}

std::string section_id(std::size_t chapter, std::size_t section) {
  return fmt::format("s{}-{}", chapter + 1, section + 1);
}

std::string contents_of(const Report& report) {
  std::string out = "<nav aria-label=\"Contents\"><ul>\n";
  for (std::size_t c = 0; c < report.chapters.size(); ++c) {
    const ReportChapter& chapter = report.chapters[c];
    if (report.chapters.size() > 1) out += fmt::format("<li><b>{}</b></li>\n", html_text(chapter.title));
    for (std::size_t s = 0; s < chapter.sections.size(); ++s)
      out += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", section_id(c, s),
                         html_text(chapter.sections[s].title));
  }
  return out + "</ul></nav>\n";
}

std::string body_of(const Report& report, Json& charts) {
  std::string out;
  for (std::size_t c = 0; c < report.chapters.size(); ++c) {
    const ReportChapter& chapter = report.chapters[c];
    // A page of one chapter has its title already.
    const bool alone = report.chapters.size() == 1 && report.title == chapter.title;
    out += "<article><header>" + (alone ? "" : "<h2>" + html_text(chapter.title) + "</h2>") +
           "<p class=\"subtitle\">" + html_text(chapter.subtitle) + "</p></header>\n";
    for (std::size_t s = 0; s < chapter.sections.size(); ++s)
      add_section(out, chapter.sections[s], section_id(c, s), alone ? "h2" : "h3", charts);
    if (!chapter.source.empty()) out += "<p class=\"source\">From " + html_text(chapter.source) + "</p>\n";
    out += "</article>\n";
  }
  return out;
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string script_json(const Json& j) {
  std::string out;
  for (const char c : j.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

std::string html_page(const Report& report) {
  const PageFiles files = page_files();
  if (files.library.empty())
    throw BackendError(
        "this build has no charts: the JavaScript library D3 was not found when it was configured\n"
        "  install libjs-d3 (tools/dev/install_packages.sh), configure and build again");
  Json charts = Json::array();
  const std::string body = body_of(report, charts);
  const std::pair<std::string_view, std::string> parts[] = {{"title", html_text(report.title)},
                                                            {"made", html_text(report.made)},
                                                            {"style", std::string(files.style)},
                                                            {"contents", contents_of(report)},
                                                            {"body", body},
                                                            {"data", script_json(charts)},
                                                            {"licence", std::string(files.licence)},
                                                            {"library", std::string(files.library)},
                                                            {"scripts", std::string(files.scripts)}};
  // Mark by mark, so that what a part holds is never taken for a mark.
  std::string out;
  std::string_view rest = files.page;
  while (!rest.empty()) {
    const std::size_t open = rest.find("{{");
    out += rest.substr(0, open);
    if (open == std::string_view::npos) break;
    const std::size_t close = rest.find("}}", open);
    SEXTANT_CHECK(close != std::string_view::npos, "a mark of the page ends");
    const std::string_view mark = rest.substr(open + 2, close - open - 2);
    bool known = false;
    for (const auto& [name, text] : parts)
      if (name == mark) {
        out += text;
        known = true;
      }
    SEXTANT_CHECK(known, "a mark of the page is known");
    rest = rest.substr(close + 2);
  }
  return out;
}

}  // namespace sextant
