// Where a verb writes and what that place can show: width, colour, UTF-8. stdout is the answer, stderr is
// progress and messages. Only detect_terminal() reads the environment; tests make their own.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

inline constexpr int kUnlimitedColumns = 1 << 20;

struct Terminal {
  std::ostream& out;
  std::ostream& err;
  int columns = 80;  // of stdout; kUnlimitedColumns when it is a pipe or file and COLUMNS is not set
  bool color = false;
  bool err_color = false;
  bool utf8 = true;
  bool err_is_terminal = false;
  int err_columns = kUnlimitedColumns;  // of stderr; that many unless it is a terminal
};

// Of this process: COLUMNS before the device's own width; NO_COLOR and TERM=dumb switch colour off, and so does Open MPI's
// mpirun, whose ranks write into a terminal of its own wherever the lines go then; UTF-8 only when the locale says so.
Terminal detect_terminal();

enum class Style { bold, dim, red, green, yellow };
std::string paint(bool color, Style, std::string_view text);

// Number of columns that UTF-8 text takes: code points, without colour sequences.
int display_width(std::string_view text);

// Lines of at most `width` columns, broken at spaces; a longer word stays whole.
std::vector<std::string> wrap(std::string_view text, int width);

// A shell command behind `lead`, with its line end. Where it is longer than `columns` it goes on, behind a backslash, with
// an option and its value on the next line, so that it can be copied as it stands.
std::string command_lines(int columns, std::string_view lead, std::string_view command);

// A message for stderr, each line of which is wrapped at its width (40 to 110 columns), two blanks further in behind a break.
// Ends with a line end.
std::string wrapped_message(const Terminal&, std::string_view text);
std::string wrapped_answer(const Terminal&, std::string_view text);  // the same for stdout

// What is wrong, behind who says so ("sextant plan"), with its line end; to be wrapped.
std::string error_text(const Terminal&, const std::string& where, const std::string& message);
// The same on stderr, with `more` lines. As a whole: ranks of a job that say the same do not say it into each other's lines.
void print_error(const Terminal&, const std::string& where, const std::string& message,
                 const std::string& more = "");

}  // namespace sextant
