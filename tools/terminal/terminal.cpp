#include "tools/terminal/terminal.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace sextant {

namespace {
std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int columns_stated() {
  const std::string_view text = environment("COLUMNS");
  int columns = 0;
  std::from_chars(text.data(), text.data() + text.size(), columns);
  return columns;
}

int terminal_columns(int fd) {
  if (!isatty(fd)) return kUnlimitedColumns;
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string wrapped(int columns, std::string_view text) {
  const bool endless = columns == kUnlimitedColumns;
  const int width = endless ? kUnlimitedColumns : std::clamp(columns, 40, 110);
  std::string out;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t blanks = std::min(line.find_first_not_of(' '), line.size());
    std::string lead(blanks, ' ');
    for (const std::string& part : wrap(line.substr(blanks), width - static_cast<int>(blanks) - 2)) {
      out += lead + part + '\n';
      lead.assign(blanks + 2, ' ');
    }
  }
  return out;
}
}  // namespace

Terminal detect_terminal() {
  std::setlocale(LC_CTYPE, "");
  const bool may_color = environment("NO_COLOR").empty() && environment("TERM") != "dumb";
  const bool passed_on = !environment("OMPI_COMM_WORLD_RANK").empty();
  const int stated = columns_stated(), of_err = terminal_columns(STDERR_FILENO);
  return {.out = std::cout,
          .err = std::cerr,
          .columns = stated > 0 ? stated : terminal_columns(STDOUT_FILENO),
          .color = may_color && !passed_on && isatty(STDOUT_FILENO),
          .err_color = may_color && isatty(STDERR_FILENO),
          .utf8 = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0,
          .err_is_terminal = isatty(STDERR_FILENO) && environment("TERM") != "dumb",
          .err_columns = stated > 0 ? std::min(stated, of_err) : of_err};
}

std::string paint(bool color, Style style, std::string_view text) {
  constexpr std::array<std::string_view, 5> codes = {"1", "2", "31", "32", "33"};
  if (!color) return std::string(text);
  std::string out = "\x1b[";
  out += codes[static_cast<std::size_t>(style)];
  out += 'm';
  out += text;
  out += "\x1b[0m";
  return out;
}

int display_width(std::string_view text) {
  int width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = std::min(text.find('m', i), text.size());
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U) {
      ++width;  // every byte but the continuation bytes of a code point
    }
  }
  return width;
}

std::vector<std::string> wrap(std::string_view text, int width) {
  std::vector<std::string> lines(1);
  int used = 0;  // of the last line
  while (!text.empty()) {
    const std::size_t stop = std::min(text.find_first_of(" \n"), text.size());
    const std::string_view word = text.substr(0, stop);
    const bool line_break = stop < text.size() && text[stop] == '\n';
    text.remove_prefix(std::min(stop + 1, text.size()));
    std::string& line = lines.back();
    const int more = display_width(word);
    if (line.empty()) {
      line = word;
      used = more;
    } else if (word.empty()) {
      line += ' ';
      ++used;
    } else if (used + 1 + more <= width) {
      (line += ' ') += word;
      used += 1 + more;
    } else {
      lines.emplace_back(word);
      used = more;
    }
    if (line_break) {
      lines.emplace_back();
      used = 0;
    }
  }
  for (auto& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

std::string command_lines(int columns, std::string_view lead, std::string_view command) {
  std::string out, line(lead);
  const std::string further(lead.size() + 2, ' ');
  bool first = true;
  while (!command.empty()) {
    // Up to the next option outside quotes.
    std::size_t stop = 0;
    for (char quote = 0; stop < command.size(); ++stop) {
      const char c = command[stop];
      if (quote != 0)
        quote = c == quote ? 0 : quote;
      else if (c == '\'' || c == '"')
        quote = c;
      else if (c == ' ' && command.substr(stop).starts_with(" -"))
        break;
    }
    const std::string_view part = command.substr(0, stop);
    if (!first && display_width(line) + display_width(part) + 3 > columns) {
      out += line + " \\\n";
      line = further;
    } else if (!first) {
      line += ' ';
    }
    line += part;
    first = false;
    command.remove_prefix(std::min(stop + 1, command.size()));
  }
  return out + line + '\n';
}

std::string wrapped_message(const Terminal& terminal, std::string_view text) {
  return wrapped(terminal.err_columns, text);
}

std::string wrapped_answer(const Terminal& terminal, std::string_view text) {
  return wrapped(terminal.columns, text);
}

std::string error_text(const Terminal& terminal, const std::string& where, const std::string& message) {
  return paint(terminal.err_color, Style::red, where + ":") + " " + message + "\n";
}

void print_error(const Terminal& terminal, const std::string& where, const std::string& message,
                 const std::string& more) {
  terminal.err << wrapped_message(terminal, error_text(terminal, where, message) + more);
}

}  // namespace sextant
