// The words and operators of a bash script, quotes and variables left as they are written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sextant {

struct ShellToken {
  enum Kind {
    word,        // text: as written, continuation lines joined
    array,       // text: "ARGS=" or "ARGS+="; elements: its words as written
    arithmetic,  // text: what stands between (( and ))
    op,          // text: ; & && || | ( ) or a newline as "\n"
    redirect,    // text: > >> < << <<- <<< >& &>
  } kind = word;
  std::string text;
  int line = 1;
  std::vector<std::string> elements;
  std::string document;  // of << : the lines of the here-document
};

// Comments are left out. Nothing is refused: what a quote or bracket leaves open reaches to the end of the text.
std::vector<ShellToken> shell_tokens(std::string_view text);

// Where the bracket, brace or quote that opens at `at` ends: one past it, or the end of the text.
std::size_t end_of_quoted(std::string_view text, std::size_t at, int level = 0);  // ' " or `
std::size_t end_of_dollar(std::string_view text, std::size_t at,
                          int level = 0);  // $name ${...} $(...) $((...)) or $ alone

}  // namespace sextant
