#include "core/plan/balanced_partition.hpp"

#include <algorithm>

namespace sextant {
namespace {

class BalancedPartition {
 public:
  BalancedPartition(const std::vector<double>& weights, int parts) : sums_(weights), parts_(parts) {
    for (std::size_t i = 1; i < sums_.size(); ++i) sums_[i] += sums_[i - 1];
  }
  std::vector<int> begins() const {
    constexpr double kClose = 1e-3;
    std::vector<int> out;
    double lower = sums_.back() / parts_, upper = sums_.back();
    while (upper > lower + kClose) {
      const double middle = lower + (upper - lower) / 2;
      if (probe(middle, out))
        upper = middle;
      else
        lower = middle + kClose;
    }
    probe(upper, out);
    return out;
  }

 private:
  int items() const { return static_cast<int>(sums_.size()); }
  double sum(int i) const { return sums_[static_cast<std::size_t>(i)]; }
  // The first item from `from` to `to` whose sum reaches the target.
  int reached(double target, int from, int to) const {
    while (from < to && sum(from) < target) ++from;
    return from;
  }
  bool probe(double bottleneck, std::vector<int>& begins) const {
    const int n = items(), chunk = n / parts_;
    begins.clear();
    begins.push_back(0);
    double target = bottleneck;
    int step = chunk;
    while (static_cast<int>(begins.size()) < parts_) {
      while (step < n && sum(step) < target) step += chunk;
      const int before = begins.back(), next = reached(target, step - chunk, std::min(step, n));
      begins.push_back(next);
      if (next == n) {
        while (static_cast<int>(begins.size()) <= parts_) begins.push_back(n);
        return sums_.back() - sum(before) < bottleneck;
      }
      target = sum(next == 0 ? n - 1 : next - 1) + bottleneck;  // index -1 is the last one there
    }
    begins.push_back(n);
    return target >= sums_.back();
  }

  std::vector<double> sums_;
  int parts_;
};

}  // namespace

std::vector<int> balanced_partition(const std::vector<double>& weights, int parts) {
  return BalancedPartition(weights, parts).begins();
}

}  // namespace sextant
