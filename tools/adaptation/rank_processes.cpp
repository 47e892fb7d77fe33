#include "tools/adaptation/rank_processes.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

namespace sextant {

RankProcesses::RankProcesses(std::unique_ptr<Communicator> world)
    : world_(std::move(world)), own_(everyone(*world_)) {}

bool RankProcesses::share(StepView& view, bool tells) {
  // The shortest is the largest of what is negative, and a work that is not another's is the only one above zero.
  std::vector<double> values = {decides() && tells ? 1.0 : 0.0};
  values.insert(values.end(), view.compute.begin(), view.compute.end());
  std::ranges::transform(view.exchanges, std::back_inserter(values), std::negate());
  own_->all_reduce(values.data(), values.data(), std::ssize(values), Dtype::fp64, Reduction::max, {});
  const auto exchanges = values.begin() + 1 + std::ssize(view.compute);
  std::copy(values.begin() + 1, exchanges, view.compute.begin());
  std::transform(exchanges, values.end(), view.exchanges.begin(), std::negate());
  return values.front() > 0;
}

std::string RankProcesses::hear(const std::string& text) {
  auto length = static_cast<std::int64_t>(text.size());
  own_->broadcast(&length, sizeof length, 0, {});
  std::string heard = text;
  heard.resize(static_cast<std::size_t>(length));
  own_->broadcast(heard.data(), length, 0, {});
  return heard;
}

}  // namespace sextant
