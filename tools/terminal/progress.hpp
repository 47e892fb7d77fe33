// How far a long job is: a bar with rate and time left on a terminal, otherwise one line every few seconds.
// Writes to stderr only; says nothing about jobs that end within half a second.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "tools/terminal/terminal.hpp"

namespace sextant {

class Progress {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  // `total` in `unit`s ("plans"); 0 when unknown.
  Progress(Terminal&, std::string label, double total, std::string unit,
           Clock clock = std::chrono::steady_clock::now);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(double done, std::string_view note = "");
  void finish();  // clears the bar; the destructor does the same

 private:
  std::string line(double done, double elapsed_s, std::string_view note) const;

  Terminal& terminal_;
  std::string label_, unit_;
  double total_;
  Clock clock_;
  std::chrono::steady_clock::time_point start_, last_;
  bool drawn_ = false;
};

// "3.2 s", "4 min 05 s", "2 h 03 min".
std::string duration_text(double seconds);

}  // namespace sextant
