#include "tools/traces/collective_waits.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace sextant {
namespace {

// A group means the same in all ranks' traces where its ranks are known: by ranks and description, numbered.
using GroupNumbers = std::map<std::pair<std::vector<int>, std::string>, std::size_t>;
// Step, number of the group, kind, peers.
using CallKey = std::tuple<std::int64_t, std::size_t, CollectiveName, std::int32_t>;
using Calls = std::map<CallKey, std::map<std::size_t, std::vector<DeviceActivity*>>>;  // by place of the rank

std::int64_t length_of(const DeviceActivity& a) { return a.end_ns - a.begin_ns; }

bool is_known(const ProcessGroup& group, int world) {
  return !group.ranks.empty() || (group.size > 1 && group.size == world);
}

// Of each group of a trace; none: not known.
std::vector<std::optional<std::size_t>> numbers_of(const RankTrace& trace, GroupNumbers& numbers) {
  std::vector<std::optional<std::size_t>> out;
  for (const ProcessGroup& group : trace.groups)
    out.push_back(
        is_known(group, trace.world)
            ? std::optional(
                  numbers.try_emplace({group.ranks, group.description}, numbers.size()).first->second)
            : std::nullopt);
  return out;
}

Calls calls_of(std::vector<RankSteps>& ranks) {
  Calls calls;
  GroupNumbers numbers;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    RankTrace& trace = ranks[r].trace;
    const auto group_numbers = numbers_of(trace, numbers);
    for (DeviceActivity& a : trace.activities) {
      if (a.kind != KernelClass::collective || !group_numbers[a.group]) continue;
      const auto step = std::ranges::find_if(ranks[r].steps, [&](const StepWindow& w) {
        return a.begin_ns >= w.begin_ns && a.begin_ns < w.end_ns;
      });
      if (step == ranks[r].steps.end()) continue;
      calls[{step->number, *group_numbers[a.group], a.collective, a.peers}][r].push_back(&a);
    }
  }
  return calls;
}

// Transfers that no other rank's trace tells of, by what they move: the shortest of them moved it and waited for nobody.
void hold_to_shortest(RankSteps& rank) {
  std::map<std::pair<std::uint32_t, std::int64_t>, std::int64_t> shortest;
  const auto key = [](const DeviceActivity& a) { return std::pair(a.group, a.bytes); };
  const auto is_transfer = [](const DeviceActivity& a) {
    return a.kind == KernelClass::collective && a.collective == CollectiveName::send_recv && a.wait_ns == 0 &&
           a.bytes > 0;
  };
  for (const DeviceActivity& a : rank.trace.activities) {
    if (!is_transfer(a)) continue;
    const auto [found, is_new] = shortest.try_emplace(key(a), length_of(a));
    if (!is_new) found->second = std::min(found->second, length_of(a));
  }
  for (DeviceActivity& a : rank.trace.activities)
    if (is_transfer(a)) a.wait_ns = length_of(a) - shortest.at(key(a));
}

}  // namespace

void find_waits(std::vector<RankSteps>& ranks, std::vector<std::string>& remarks) {
  std::size_t unlike = 0, matched = 0;
  for (auto& [key, by_rank] : calls_of(ranks)) {
    if (by_rank.size() < 2) continue;
    const std::size_t count = by_rank.begin()->second.size();
    if (!std::ranges::all_of(by_rank, [&](const auto& calls) { return calls.second.size() == count; })) {
      ++unlike;
      continue;
    }
    for (std::size_t n = 0; n < count; ++n) {
      std::int64_t transfer = std::numeric_limits<std::int64_t>::max();
      for (const auto& [rank, calls] : by_rank) transfer = std::min(transfer, length_of(*calls[n]));
      for (auto& [rank, calls] : by_rank) calls[n]->wait_ns = length_of(*calls[n]) - transfer;
    }
    matched += count;
  }
  if (unlike > 0)
    remarks.push_back(fmt::format(
        "the ranks did not run as many of {} kinds of collectives of a step: for those, waiting for other "
        "ranks is counted as transfer",
        unlike));
  const bool any = std::ranges::any_of(ranks, [](const RankSteps& r) {
    return std::ranges::any_of(r.trace.activities,
                               [](const DeviceActivity& a) { return a.kind == KernelClass::collective; });
  });
  if (any && matched == 0)
    remarks.push_back(
        "collectives of several ranks could not be matched (one rank, or process groups without ranks): "
        "waiting inside them for other ranks is counted as communication");
  for (RankSteps& rank : ranks) hold_to_shortest(rank);
}

}  // namespace sextant
