#include "tools/verbs/help.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {
constexpr std::array<ExitCodeMeaning, 9> kExitCodes = {{
    {ExitCode::ok, "done"},
    {ExitCode::internal_error, "internal error: a bug in sextant"},
    {ExitCode::usage, "wrong command line"},
    {ExitCode::bad_input, "bad input file, or an output that cannot be opened there"},
    {ExitCode::no_feasible_plan, "no feasible plan"},
    {ExitCode::export_cannot_express, "the export target cannot express the plan"},
    {ExitCode::outside_tolerance, "a comparison is outside its tolerance"},
    {ExitCode::run_failed, "a device, a process or the operating system failed (a full disk)"},
    {ExitCode::interrupted, "interrupted; the best so far was printed"},
}};

int text_width(const Terminal& terminal) { return std::clamp(terminal.columns, 40, 100); }

// "  name" in a column of its own, the text beside it, wrapped with a hanging indent.
std::string entry(const std::string& name, const std::string& text, int name_width, int width) {
  std::string out = "  " + name;
  bool beside = display_width(name) <= name_width;
  if (!beside) out += '\n';
  for (const auto& line : wrap(text, std::max(20, width - name_width - 4))) {
    const int used = beside ? display_width(name) : -2;
    out += std::string(static_cast<std::size_t>(name_width + 2 - used), ' ') + line + '\n';
    beside = false;
  }
  return out;
}

std::string paragraph(const std::string& text, int width) {
  std::string out;
  for (const auto& line : wrap(text, width)) out += line + '\n';
  return out;
}

std::string help_heading(const Terminal& terminal, std::string_view text) {
  return '\n' + paint(terminal.color, Style::bold, text) + '\n';
}

std::string option_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const auto& name : option.get_snames()) names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) names.push_back("--" + name);
  const std::string metavar = option.get_expected_max() > 0 ? " " + option.get_type_name() : "";
  return fmt::format("{}{}", fmt::join(names, ", "), metavar);
}

std::string option_text(const CLI::Option& option) {
  std::string text = option.get_description();
  if (!option.get_default_str().empty()) text += fmt::format(" [default: {}]", option.get_default_str());
  return text;
}
}  // namespace

std::span<const ExitCodeMeaning> exit_code_meanings() { return kExitCodes; }

std::string overview_text(const Terminal& terminal) {
  const int width = text_width(terminal);
  std::string out = "usage: sextant VERB [options]\n\n" + paragraph(kProgramDescription, width);
  out += help_heading(terminal, "verbs");
  for (const auto& verb : verbs()) out += entry(verb.name, verb.summary, 13, width);
  out += help_heading(terminal, "options");
  out += entry("-h, --help", "print this help, or that of a verb: sextant VERB --help", 13, width);
  out += entry("-V, --version", "print the version", 13, width);
  out += help_heading(terminal, "exit codes");
  for (const auto& [code, meaning] : kExitCodes)
    out += entry(fmt::format("{:>3}", static_cast<int>(code)), meaning, 13, width);
  return out;
}

std::string help_text(const CLI::App& app, const Verb& verb, const Terminal& terminal) {
  const int width = text_width(terminal);
  std::string positionals;
  std::string options;
  constexpr int kNameWidth = 22;
  std::string usage = "usage: sextant " + verb.name;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    if (option->nonpositional()) {
      options += entry(option_names(*option), option_text(*option), kNameWidth, width);
    } else {
      usage += option->get_required() ? " " + option->get_type_name() : " [" + option->get_type_name() + "]";
      positionals += entry(option->get_type_name(), option_text(*option), kNameWidth, width);
    }
  }
  std::string out = usage + " [options]\n\n" + paragraph(verb.description, width);
  if (!positionals.empty()) out += help_heading(terminal, "arguments") + positionals;
  out += help_heading(terminal, "options") + options + help_heading(terminal, "examples");
  for (const auto& example : verb.examples) {
    if (!example.what.empty()) out += paint(terminal.color, Style::dim, "  # " + example.what) + '\n';
    out += command_lines(terminal.columns, "  ", example.command);
  }
  return out;
}

}  // namespace sextant
