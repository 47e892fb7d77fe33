#include "tools/terminal/progress.hpp"

#include <algorithm>
#include <cmath>
#include <ostream>

#include <fmt/format.h>

namespace sextant {

namespace {
constexpr double kFirst_s = 0.5, kTerminalPeriod_s = 0.1, kLogPeriod_s = 5.0;
constexpr int kBar = 10;
constexpr int kErrColumns = 79;  // the bar stays on one line of the narrowest usual terminal

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }
}  // namespace

std::string duration_text(double s) {
  if (s < 59.95) return fmt::format("{:.1f} s", s);
  const auto whole = static_cast<std::int64_t>(std::llround(s));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

Progress::Progress(Terminal& terminal, std::string label, double total, std::string unit, Clock clock)
    : terminal_(terminal),
      label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      clock_(std::move(clock)),
      start_(clock_()),
      last_(start_) {}

Progress::~Progress() { finish(); }

std::string Progress::line(double done, double elapsed_s, std::string_view note) const {
  const double rate = elapsed_s > 0 ? done / elapsed_s : 0.0;
  std::string text = label_;
  if (total_ > 0) {
    const double share = std::clamp(done / total_, 0.0, 1.0);
    if (terminal_.err_is_terminal) {
      const int full = static_cast<int>(share * kBar);
      text += " [";
      for (int i = 0; i < kBar; ++i) text += i < full ? (terminal_.utf8 ? "█" : "#") : " ";
      text += ']';
    }
    text += fmt::format(" {:3.0f} %", 100 * share);
  }
  if (done > 0 || total_ > 0) text += fmt::format(", {:.0f} {}, {:.3g} {}/s", done, unit_, rate, unit_);
  if (total_ > done && rate > 0) text += ", " + duration_text((total_ - done) / rate) + " left";
  if (!note.empty()) (text += "; ") += note;
  return text;
}

void Progress::update(double done, std::string_view note) {
  const auto now = clock_();
  const double period = terminal_.err_is_terminal ? kTerminalPeriod_s : kLogPeriod_s;
  if (seconds(now - last_) < (drawn_ || !terminal_.err_is_terminal ? period : kFirst_s)) return;
  last_ = now;
  std::string text = line(done, seconds(now - start_), note);
  if (terminal_.err_is_terminal) {
    if (display_width(text) > kErrColumns) text = line(done, seconds(now - start_), "");
    terminal_.err << "\r\x1b[K" << text << std::flush;
    drawn_ = true;
  } else {
    terminal_.err << text << std::endl;
  }
}

void Progress::finish() {
  if (drawn_) terminal_.err << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

}  // namespace sextant
