#include "core/cluster/cluster_events.hpp"

#include <algorithm>
#include <iterator>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/decimal.hpp"
#include "core/base/error.hpp"
#include "core/base/words.hpp"

namespace sextant {
namespace {

constexpr long long kMostSteps = 1'000'000'000'000;
constexpr double kSlowest = 1000;  // times as long

std::vector<std::string_view> tokens_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view kBlank = " \t\r";
  for (std::size_t at = line.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlank, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlank, end);
  }
  return words;
}

// Reads one line; says what it expected where the line has something else.
class EventReader {
 public:
  EventReader(std::string_view line, const ClusterSpec& cluster)
      : words_(tokens_of(line)), cluster_(cluster), gpus_(usable_gpus(cluster)) {}

  ClusterEvent read() {
    expect("step");
    event_.from = number("a step", kMostSteps);
    const std::string_view what = word("rank, node, link, kill or join");
    if (what == "rank") {
      place_rank();
      slower({"compute"});
    } else if (what == "node") {
      place_node();
      slower({"compute", "network", "links"});
    } else if (what == "link") {
      link();
    } else if (what == "kill") {
      kill();
    } else if (what == "join") {
      event_.joins = static_cast<int>(number("how many lost ranks are back, 1 or more", kMaxJoins));
    } else {
      --at_;
      fail("rank, node, link, kill or join");
    }
    if (what == "join" && event_.joins < 1) {
      --at_;
      fail("how many lost ranks are back, 1 or more");
    }
    if (at_ < words_.size() && what != "kill" && what != "join") {
      expect("until");
      event_.until = number("the step with which it ends", kMostSteps);
      if (event_.until <= event_.from) {
        --at_;
        fail(fmt::format("a step behind {}", event_.from));
      }
    }
    if (at_ < words_.size()) fail("the end of the line");
    return event_;
  }

  struct Wrong {
    std::string found, expected;
  };

 private:
  static constexpr long long kMaxJoins = 1'000'000;

  [[noreturn]] void fail(std::string expected) const {
    throw Wrong{at_ < words_.size() ? std::string(words_[at_]) : "the end of the line", std::move(expected)};
  }
  std::string_view word(const char* expected) {
    if (at_ >= words_.size()) fail(expected);
    return words_[at_++];
  }
  void expect(const char* word_expected) {
    if (word(word_expected) != word_expected) {
      --at_;
      fail(word_expected);
    }
  }
  std::int64_t number(const std::string& expected, long long most) {
    const auto n = at_ < words_.size() ? parse_count(words_[at_], most) : std::nullopt;
    if (!n) fail(expected);
    ++at_;
    return *n;
  }
  void place_rank() {
    const auto ranks = static_cast<long long>(gpus_.size());
    const std::int64_t rank = number(fmt::format("a rank, 0 to {}", ranks - 1), ranks - 1);
    event_.defect.node = gpus_[static_cast<std::size_t>(rank)].node;
    event_.defect.gpu = gpus_[static_cast<std::size_t>(rank)].gpu;
  }
  void place_node() {
    event_.defect.node =
        static_cast<int>(number(fmt::format("a node, 0 to {}", cluster_.nodes - 1), cluster_.nodes - 1));
  }
  double factor(double least, double most, const std::string& expected) {
    const std::string_view text = word(expected.c_str());
    const auto x = text.starts_with('x') ? parse_decimal(text.substr(1)) : std::nullopt;
    if (!x || *x < least || *x > most) {
      --at_;
      fail(expected);
    }
    return *x;
  }
  void slower(const std::vector<std::string_view>& parts) {
    const std::string any = fmt::format("{}", fmt::join(parts, ", "));
    const std::string_view part = word(any.c_str());
    if (std::ranges::find(parts, part) == parts.end()) {
      --at_;
      fail(any);
    }
    if (part == "compute")
      event_.defect.compute_factor =
          1 / factor(1, kSlowest, "x1 to x1000, how many times as long it takes to compute");
    else
      (part == "network" ? event_.defect.network_factor : event_.defect.node_link_factor) =
          factor(1 / kSlowest, 1, "x0.001 to x1, what is left of the bandwidth");
  }
  // Both ends of the one network there is: slowing one of them slows it.
  void link() {
    const std::string_view ends = word("nodeA-nodeB");
    if (cluster_.nodes != 2) {
      --at_;
      fail("'node N network xF' on a cluster of other than two nodes, whose nodes have one network");
    }
    if (ends != "node0-node1" && ends != "node1-node0") {
      --at_;
      fail("node0-node1");
    }
    event_.defect.node = 0;
    expect("bandwidth");
    event_.defect.network_factor = factor(1 / kSlowest, 1, "x0.001 to x1, what is left of the bandwidth");
  }
  void kill() {
    const std::string_view what = word("rank or node");
    if (what == "rank") {
      place_rank();
    } else if (what == "node") {
      place_node();
    } else {
      --at_;
      fail("rank or node");
    }
    event_.defect.missing = true;
  }

  std::vector<std::string_view> words_;
  const ClusterSpec& cluster_;
  const std::vector<GpuPlace> gpus_;
  std::size_t at_ = 0;
  ClusterEvent event_;
};

}  // namespace

ClusterEvents::ClusterEvents(std::string_view text, const std::string& file, const ClusterSpec& cluster)
    : gpus_per_node_(cluster.node.gpus) {
  std::vector<Problem> problems;
  int number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (tokens_of(line).empty()) continue;
    try {
      ClusterEvent event = EventReader(line, cluster).read();
      const auto words = tokens_of(line);
      event.text = fmt::format("{}", fmt::join(words, " "));
      events_.push_back(std::move(event));
    } catch (const EventReader::Wrong& wrong) {
      problems.push_back({file, fmt::format("line {}", number), wrong.found, wrong.expected,
                          "an event is such as: step 40 rank 3 compute x2 until 120"});
    }
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  std::ranges::stable_sort(events_, {}, &ClusterEvent::from);
}

std::vector<GpuPlace> ClusterEvents::lost(std::int64_t step) const {
  std::vector<GpuPlace> lost;  // in the order in which they were lost
  for (const ClusterEvent& e : events_) {
    if (e.from > step) break;
    if (e.joins > 0) {
      const auto back = std::min(lost.size(), static_cast<std::size_t>(e.joins));
      lost.erase(lost.begin(), lost.begin() + static_cast<std::ptrdiff_t>(back));
    }
    for (int gpu = 0; e.defect.missing && gpu < gpus_per_node_; ++gpu) {
      const GpuPlace place{e.defect.node, gpu};
      if ((e.defect.gpu < 0 || e.defect.gpu == gpu) && std::ranges::find(lost, place) == lost.end())
        lost.push_back(place);
    }
  }
  std::ranges::sort(lost);
  return lost;
}

ClusterEvents::Change ClusterEvents::change(const std::vector<GpuPlace>& known_lost,
                                            std::int64_t step) const {
  const std::vector<GpuPlace> now = lost(step);
  Change change;
  std::ranges::set_difference(now, known_lost, std::back_inserter(change.lost));
  std::ranges::set_difference(known_lost, now, std::back_inserter(change.back));
  return change;
}

ClusterSpec ClusterEvents::at(const ClusterSpec& cluster, std::int64_t step) const {
  ClusterSpec now = cluster;
  for (const ClusterEvent& e : events_)
    if (e.joins == 0 && !e.defect.missing && e.from <= step && step < e.until)
      now.defects.push_back(e.defect);
  for (const GpuPlace& place : lost(step)) now.defects.push_back(missing(place));
  return now;
}

bool ClusterEvents::changes(std::int64_t step) const {
  return std::ranges::any_of(events_,
                             [&](const ClusterEvent& e) { return e.from == step || e.until == step; });
}

}  // namespace sextant
