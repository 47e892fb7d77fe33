// What repeats of one measurement say: the middle, how far they scatter, and how many of them are of another kind.
// Ignores in which order they came.
#pragma once

#include <vector>

namespace sextant {

struct SampleSummary {
  double mean = 0, median = 0;
  double spread = 0;  // between the quartiles
  int samples = 0;
  // Of them: further from the quartiles than 3 times the spread, Tukey's "far out" (Exploratory Data Analysis, 1977), and
  // than 1 % of the median, which is what a clock's step makes of samples that are all alike.
  int outliers = 0;
};

// In the samples' unit; of none, zeros.
SampleSummary summarize(std::vector<double> samples);

}  // namespace sextant
