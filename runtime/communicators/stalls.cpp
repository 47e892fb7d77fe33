#include "runtime/communicators/stalls.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>

#include <fmt/format.h>

namespace sextant {

std::string packed(const Answer& answer) {
  constexpr std::size_t kMost = 3000;
  const auto n = static_cast<std::uint32_t>(answer.awaits.size());
  std::string out(sizeof n + n * sizeof(int), '\0');
  std::memcpy(out.data(), &n, sizeof n);
  if (n > 0) std::memcpy(out.data() + sizeof n, answer.awaits.data(), n * sizeof(int));
  return out + answer.state.substr(0, kMost);
}

Answer unpacked(std::string_view bytes) {
  std::uint32_t n = 0;
  if (bytes.size() < sizeof n) return {};
  std::memcpy(&n, bytes.data(), sizeof n);
  bytes.remove_prefix(sizeof n);
  if (bytes.size() / sizeof(int) < n) return {};
  Answer answer;
  answer.awaits.resize(n);
  if (n > 0) std::memcpy(answer.awaits.data(), bytes.data(), n * sizeof(int));
  answer.state = bytes.substr(n * sizeof(int));
  return answer;
}

Stalls stalls_from(int me, int size, const Answers& answers) {
  Stalls found;
  for (int rank = 0; rank < size; ++rank) {
    const auto answer = answers.find(rank);
    if (answer == answers.end()) {
      found.silent.push_back(rank);
      found.states += fmt::format("  rank {}: no answer\n", rank);
    } else if (rank != me) {
      found.states += answer->second.state;
    }
  }
  if (!found.silent.empty()) return found;
  // From those waited for here to those that they wait for, and so on.
  std::vector<int> open = answers.at(me).awaits;
  for (std::set<int> seen{me}; !open.empty();) {
    const int rank = open.back();
    open.pop_back();
    if (!seen.insert(rank).second) continue;
    const std::vector<int>& next = answers.at(rank).awaits;
    if (next.empty()) found.busy.push_back(rank);
    open.insert(open.end(), next.begin(), next.end());
  }
  std::ranges::sort(found.busy);
  return found;
}

}  // namespace sextant
