#include "tools/terminal/terminal.hpp"

#include <cstdlib>
#include <sstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace sextant {
namespace {

TEST(Terminal, WidthCountsCodePointsAndSkipsColour) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("2³⁰ GiB"), 7);
  EXPECT_EQ(display_width(paint(true, Style::red, "abc")), 3);
  EXPECT_EQ(display_width("abc\x1b["), 3);  // a cut sequence ends the text
  EXPECT_EQ(paint(false, Style::red, "abc"), "abc");
  EXPECT_NE(paint(true, Style::red, "abc"), "abc");
}

TEST(Terminal, WrapKeepsWordsAndWidth) {
  const auto lines = wrap("one two three four", 9);
  EXPECT_EQ(lines, (std::vector<std::string>{"one two", "three", "four"}));
  EXPECT_EQ(wrap("a-word-longer-than-that x", 5), (std::vector<std::string>{"a-word-longer-than-that", "x"}));
  EXPECT_EQ(wrap("first\nsecond", 80), (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(wrap("", 10), std::vector<std::string>{""});
  EXPECT_EQ(wrap("a  b", 10), std::vector<std::string>{"a  b"});
  EXPECT_EQ(wrap("a  b", 3), (std::vector<std::string>{"a", "b"}));
  std::string many;
  for (int i = 0; i < 200'000; ++i) many += "word ";
  EXPECT_EQ(wrap(many, 1 << 30).size(), 1u) << "in time proportional to its length: no test waits otherwise";
}

// A shell reads the same words, however narrow the terminal.
TEST(Terminal, CommandsAreBrokenBeforeTheirOptions) {
  const std::string command = "sextant plan --model llama-7b --limit 'tp<=8 - 1' --json";
  EXPECT_EQ(command_lines(kUnlimitedColumns, "next: ", command), "next: " + command + '\n');
  const std::string broken = command_lines(40, "next: ", command);
  EXPECT_EQ(broken,
            "next: sextant plan --model llama-7b \\\n"
            "        --limit 'tp<=8 - 1' --json\n");
  EXPECT_EQ(command_lines(30, "", "sextant plan --model a-name-longer-than-all-of-that --json"),
            "sextant plan \\\n  --model a-name-longer-than-all-of-that \\\n  --json\n");
}

TEST(Terminal, MessagesAreWrappedWhereSomebodyReadsThem) {
  std::ostringstream out, err;
  Terminal terminal{.out = out, .err = err};
  const std::string text =
      "sextant run: " + std::string(30, 'a') + " " + std::string(30, 'b') + "\n  a hint\n";
  EXPECT_EQ(wrapped_message(terminal, text), text) << "a file has whole lines";
  terminal.err_columns = 50;
  EXPECT_EQ(wrapped_message(terminal, text),
            "sextant run: " + std::string(30, 'a') + "\n  " + std::string(30, 'b') + "\n  a hint\n");
  terminal.err_columns = 79;
  EXPECT_EQ(wrapped_message(terminal, text), text);
}

// Its own ends are closed again and the process's restored.
class PseudoTerminal {
 public:
  PseudoTerminal() : ours_(::posix_openpt(O_RDWR | O_NOCTTY)), out_(::dup(1)), err_(::dup(2)) {
    if (ours_ < 0 || ::grantpt(ours_) != 0 || ::unlockpt(ours_) != 0) return;
    const int theirs = ::open(::ptsname(ours_), O_RDWR | O_NOCTTY);
    const winsize size{.ws_row = 25, .ws_col = 66, .ws_xpixel = 0, .ws_ypixel = 0};
    there_ = theirs >= 0 && ::ioctl(theirs, TIOCSWINSZ, &size) == 0 && ::dup2(theirs, 1) == 1 &&
             ::dup2(theirs, 2) == 2;
    ::close(theirs);
  }
  ~PseudoTerminal() {
    ::dup2(out_, 1);
    ::dup2(err_, 2);
    for (const int fd : {ours_, out_, err_}) ::close(fd);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  bool there() const { return there_; }

 private:
  int ours_, out_, err_;
  bool there_ = false;
};

TEST(Terminal, MpirunsOwnTerminalHasNoColour) {
  for (const char* name : {"NO_COLOR", "COLUMNS", "OMPI_COMM_WORLD_RANK"}) ::unsetenv(name);
  ::setenv("TERM", "xterm", 1);
  bool plain = false, passed_on = true;
  int columns = 0;
  {
    const PseudoTerminal here;
    if (!here.there()) GTEST_SKIP() << "no pseudo terminals here";
    plain = detect_terminal().color;
    columns = detect_terminal().err_columns;
    ::setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    passed_on = detect_terminal().color;
    ::unsetenv("OMPI_COMM_WORLD_RANK");
  }
  EXPECT_TRUE(plain);
  EXPECT_EQ(columns, 66);
  EXPECT_FALSE(passed_on);
  EXPECT_EQ(detect_terminal().err_columns == kUnlimitedColumns, ::isatty(2) == 0);
}

}  // namespace
}  // namespace sextant
