#include "tools/verbs/man_pages.hpp"

#include <algorithm>
#include <cctype>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tools/inputs/verb.hpp"
#include "tools/terminal/terminal.hpp"
#include "tools/verbs/help.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {

// Text that roff prints as it is: a minus that can be copied, no escapes, no requests at the start of a line.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool starts = out.empty() || out.back() == '\n';
    if (starts && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '\'')
      out += "\\(aq";
    else if (c == '^')
      out += "\\(ha";
    else if (c == '~')
      out += "\\(ti";
    else if (c == '`')
      out += "\\(ga";
    else
      out += c;
  }
  return out;
}

// Text of some sentences, in lines that an editor shows whole.
std::string roff_lines(const std::string& text) {
  std::string out;
  for (const auto& line : wrap(text, 66)) out += roff(line) + '\n';
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

std::string head(const std::string& name, const std::string& summary, const std::string& version,
                 const std::string& date) {
  std::string title = name;
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return std::toupper(c); });
  return fmt::format(".TH {} 1 {} \"sextant {}\" \"User Commands\"\n.SH NAME\n{} \\-\n{}", roff(title), date,
                     version, roff(name), roff_lines(summary));
}

// One entry of a list: a bold name on a line of its own, the text below.
std::string item(const std::string& name, const std::string& text) {
  return fmt::format(".TP\n{}\n{}", name, roff_lines(text));
}

std::string signature(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const auto& name : option.get_snames()) names.push_back(bold("-" + name));
  for (const auto& name : option.get_lnames()) names.push_back(bold("--" + name));
  const std::string value = option.get_expected_max() > 0 ? " " + italic(option.get_type_name()) : "";
  return fmt::format("{}{}", fmt::join(names, ", "), value);
}

std::string described(const CLI::Option& option) {
  const std::string value = option.get_default_str();
  return option.get_description() + (value.empty() ? "" : fmt::format(" [default: {}]", value));
}

std::string exit_status() {
  std::string out = ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : exit_code_meanings())
    out += item(bold(std::to_string(static_cast<int>(code))), meaning);
  return out;
}

std::string examples_of(const Verb& verb) {
  std::string out, paragraph;  // the head of a section begins its first one
  for (const auto& example : verb.examples) {
    if (!example.what.empty()) {
      out += paragraph + roff_lines(example.what);
      paragraph = ".PP\n";
    }
    out += paragraph + ".EX\n" + roff(example.command) + "\n.EE\n";
    paragraph = ".PP\n";
  }
  return ".SH EXAMPLES\n" + out;
}

ManPage page_of(const CLI::App& app, const Verb& verb, const std::string& version, const std::string& date) {
  const std::string name = "sextant-" + verb.name;
  std::string usage = bold("sextant " + verb.name), arguments, options;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    if (option->nonpositional()) {
      options += item(signature(*option), described(*option));
    } else {
      const std::string value = italic(option->get_type_name());
      usage += option->get_required() ? " " + value : " [" + value + "]";
      arguments += item(value, described(*option));
    }
  }
  std::string text = head(name, verb.summary, version, date);
  text += fmt::format(".SH SYNOPSIS\n{} [{}]\n.SH DESCRIPTION\n{}", usage, italic("options"),
                      roff_lines(verb.description));
  if (!arguments.empty()) text += ".SH ARGUMENTS\n" + arguments;
  text += ".SH OPTIONS\n" + options + exit_status() + examples_of(verb);
  text += ".SH SEE ALSO\n.BR sextant (1)\n";
  return {name + ".1", text};
}

ManPage overview_page(const std::string& version, const std::string& date) {
  std::string text = head("sextant", "plan, simulate and run LLaMA training layouts", version, date);
  text += fmt::format(".SH SYNOPSIS\n{} {} [{}]\n.SH DESCRIPTION\n{}.SH VERBS\n", bold("sextant"),
                      italic("verb"), italic("options"), roff_lines(kProgramDescription));
  for (const Verb& verb : verbs()) text += item(bold(verb.name), verb.summary);
  text += ".SH OPTIONS\n" + item(bold("-h") + ", " + bold("--help"), "print the help, or that of a verb") +
          item(bold("-V") + ", " + bold("--version"), "print the version") + exit_status();
  text +=
      ".SH ENVIRONMENT\n" +
      item(bold("COLUMNS"), "width of tables, where standard output is no terminal or another is wanted") +
      item(bold("NO_COLOR"), "no colours, as with --color never") +
      item(bold("SEXTANT_PYTHON"), "the Python that doctor and export ask for frameworks (default: python3)");
  text += ".SH SEE ALSO\n";
  for (std::size_t i = 0; i < verbs().size(); ++i)
    text +=
        fmt::format(".BR {} (1){}\n", roff("sextant-" + verbs()[i].name), i + 1 < verbs().size() ? "," : "");
  return {"sextant.1", text};
}

}  // namespace

std::vector<ManPage> man_pages(const CommandLine& line, const std::string& version, const std::string& date) {
  std::vector<ManPage> pages = {overview_page(version, date)};
  for (std::size_t i = 0; i < line.apps.size(); ++i)
    pages.push_back(page_of(*line.apps[i], verbs()[i], version, date));
  return pages;
}

}  // namespace sextant
