#include "core/cluster_spec.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/cluster_fields.hpp"

namespace sextant {

using nlohmann::json;
using namespace cluster_fields;

std::string_view name(NodeLinkKind kind) { return kLinkNames[static_cast<std::size_t>(kind)]; }

int ClusterSpec::gpus() const {
  std::set<std::pair<int, int>> missing;
  for (const Defect& d : defects) {
    if (!d.missing) continue;
    for (int g = 0; g < node.gpus; ++g)
      if (d.gpu < 0 || d.gpu == g) missing.emplace(d.node, g);
  }
  return nodes * node.gpus - static_cast<int>(missing.size());
}

namespace {

bool inside(double x, const Range& r) {
  return std::isfinite(x) && x <= r.high && (r.above_low ? x > r.low : x >= r.low);
}
std::string describe(const Range& r) {
  return r.above_low ? fmt::format("a number above {:g}, at most {:g}", r.low, r.high)
                     : fmt::format("a number from {:g} to {:g}", r.low, r.high);
}
template <class Names>
std::string one_of(const Names& names) {
  return fmt::format("one of {}", fmt::join(names, ", "));
}
template <class Names>
std::string suggestion(std::string_view word, const Names& names) {
  const std::string near = closest(word, std::vector<std::string>(names.begin(), names.end()));
  return near.empty() ? "" : fmt::format("did you mean {}?", near);
}

// v in units of `scale` such that reading it back gives v again, bit for bit.
double in_units(double v, double scale) {
  const double x = v / scale;
  for (const double candidate : {x, std::nextafter(x, 0.0), std::nextafter(x, INFINITY)})
    if (candidate * scale == v) return candidate;
  return x;
}

// What all three visitors share: where we are and what was wrong so far.
class Visitor {
 public:
  Visitor(std::string prefix, std::vector<Problem>& problems)
      : prefix_(std::move(prefix)), problems_(problems) {}

 protected:
  std::string path(std::string_view key) const {
    return prefix_.empty() ? std::string(key) : fmt::format("{}.{}", prefix_, key);
  }
  void problem(std::string_view key, std::string value, std::string expected, std::string hint = "") {
    problems_.push_back({"", path(key), std::move(value), std::move(expected), std::move(hint)});
  }
  std::string prefix_;
  std::vector<Problem>& problems_;
};

class Checker : public Visitor {
 public:
  using Visitor::Visitor;
  void text(std::string_view, const std::string&, Need) {}
  template <class Names>
  void choice(std::string_view key, const std::string& value, const Names& names, Need) {
    if (std::ranges::find(names, value) == names.end())
      problem(key, fmt::format("\"{}\"", value), one_of(names), suggestion(value, names));
  }
  template <class Q>
  void quantity(std::string_view key, const Q& q, double scale, const Range& r, Need need) {
    number(key, static_cast<double>(q.v) / scale, r, need);
  }
  void number(std::string_view key, double x, const Range& r, Need) {
    if (!inside(x, r)) problem(key, fmt::format("{:g}", x), describe(r));
  }
  void integer(std::string_view key, int x, const Range& r, Need need) { number(key, x, r, need); }
  void boolean(std::string_view, bool) {}
  void link_kind(std::string_view, NodeLinkKind, Need) {}
  void peaks(const std::map<Dtype, FlopsPerSecond>& peak, const Range& r) {
    for (const auto& [dtype, rate] : peak)
      quantity(kPeakKeys[static_cast<std::size_t>(dtype)], rate, kTFLOPS, r, required);
    if (peak.empty()) problem("peak_bf16_TFLOPS", "nothing", "a dense peak for at least one number format");
  }
  template <class F>
  void object(std::string_view key, F&& fields, Need) {
    Checker in(path(key), problems_);
    fields(in);
  }
  template <class List, class F>
  void list(std::string_view key, const List& items, F&& fields) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      Checker in(fmt::format("{}[{}]", path(key), i), problems_);
      fields(in, items[i]);
    }
  }
};

class Writer {
 public:
  explicit Writer(json& j) : json_(j) { json_ = json::object(); }
  void text(std::string_view key, const std::string& s, Need) { json_[std::string(key)] = s; }
  template <class Names>
  void choice(std::string_view key, const std::string& s, const Names&, Need) {
    json_[std::string(key)] = s;
  }
  template <class Q>
  void quantity(std::string_view key, const Q& q, double scale, const Range&, Need) {
    json_[std::string(key)] = in_units(static_cast<double>(q.v), scale);
  }
  void number(std::string_view key, double x, const Range&, Need) { json_[std::string(key)] = x; }
  void integer(std::string_view key, int x, const Range&, Need) { json_[std::string(key)] = x; }
  void boolean(std::string_view key, bool x) { json_[std::string(key)] = x; }
  void link_kind(std::string_view key, NodeLinkKind kind, Need) { json_[std::string(key)] = name(kind); }
  void peaks(const std::map<Dtype, FlopsPerSecond>& peak, const Range& r) {
    for (const auto& [dtype, rate] : peak)
      quantity(kPeakKeys[static_cast<std::size_t>(dtype)], rate, kTFLOPS, r, required);
  }
  template <class F>
  void object(std::string_view key, F&& fields, Need) {
    Writer in(json_[std::string(key)]);
    fields(in);
  }
  template <class List, class F>
  void list(std::string_view key, const List& items, F&& fields) {
    json& array = json_[std::string(key)] = json::array();
    for (const auto& item : items) {
      Writer in(array.emplace_back());
      fields(in, item);
    }
  }

 private:
  json& json_;
};

class Reader : public Visitor {
 public:
  Reader(const json& j, std::string prefix, std::vector<Problem>& problems)
      : Visitor(std::move(prefix), problems), json_(j) {
    if (!json_.is_object()) problems_.push_back({"", prefix_, shown(json_), "an object {...}", ""});
  }
  // Keys that nobody asked for.
  void finish() {
    if (!json_.is_object()) return;
    for (const auto& [key, value] : json_.items())
      if (std::ranges::find(known_, key) == known_.end()) {
        std::string hint = suggestion(key, known_);
        problem(key, shown(value), "no such key",
                hint.empty() ? fmt::format("known: {}", fmt::join(known_, ", ")) : hint);
      }
  }

  void text(std::string_view key, std::string& out, Need need) {
    if (const json* j = get(key, need))
      j->is_string() ? void(out = j->get<std::string>()) : wrong(key, *j, "a text in quotes");
  }
  template <class Names>
  void choice(std::string_view key, std::string& out, const Names& names, Need need) {
    const json* j = get(key, need);
    if (!j) return;
    if (j->is_string() && std::ranges::find(names, j->get<std::string>()) != names.end())
      out = j->get<std::string>();
    else
      problem(key, shown(*j), one_of(names), j->is_string() ? suggestion(j->get<std::string>(), names) : "");
  }
  template <class Q>
  void quantity(std::string_view key, Q& out, double scale, const Range& r, Need need) {
    if (double x = 0; read(key, x, r, need)) out = Q(static_cast<decltype(out.v)>(x * scale));
  }
  void number(std::string_view key, double& out, const Range& r, Need need) {
    if (double x = 0; read(key, x, r, need)) out = x;
  }
  void integer(std::string_view key, int& out, const Range& r, Need need) {
    double x = 0;
    if (!read(key, x, r, need)) return;
    if (x != std::floor(x))
      problem(key, fmt::format("{:g}", x), "a whole number");
    else
      out = static_cast<int>(x);
  }
  void boolean(std::string_view key, bool& out) {
    if (const json* j = get(key, optional))
      j->is_boolean() ? void(out = j->get<bool>()) : wrong(key, *j, "true or false");
  }
  void link_kind(std::string_view key, NodeLinkKind& out, Need need) {
    std::string word;
    choice(key, word, kLinkNames, need);
    if (const auto it = std::ranges::find(kLinkNames, word); it != kLinkNames.end())
      out = static_cast<NodeLinkKind>(it - kLinkNames.begin());
  }
  void peaks(std::map<Dtype, FlopsPerSecond>& out, const Range& r) {
    for (std::size_t i = 0; i < kPeakKeys.size(); ++i) {
      FlopsPerSecond rate;
      quantity(kPeakKeys[i], rate, kTFLOPS, r, optional);
      if (rate.v > 0) out[static_cast<Dtype>(i)] = rate;
    }
  }
  template <class F>
  void object(std::string_view key, F&& fields, Need need) {
    const json* j = find(key, need);
    if (!j) return;
    Reader in(*j, path(key), problems_);
    if (!j->is_object()) return;
    fields(in);
    in.finish();
  }
  template <class List, class F>
  void list(std::string_view key, List& items, F&& fields) {
    const json* j = find(key, optional);
    if (!j) return;
    if (!j->is_array()) return wrong(key, *j, "a list [...]");
    for (std::size_t i = 0; i < j->size(); ++i) {
      Reader in((*j)[i], fmt::format("{}[{}]", path(key), i), problems_);
      fields(in, items.emplace_back());
      in.finish();
    }
  }

 private:
  static std::string shown(const json& j) {
    std::string s = j.dump(-1, ' ', false, json::error_handler_t::replace);
    constexpr std::size_t kLongest = 60;
    return s.size() > kLongest ? s.substr(0, kLongest) + "..." : s;
  }
  void wrong(std::string_view key, const json& j, std::string expected) {
    problem(key, shown(j), std::move(expected));
  }

  const json* find(std::string_view key, Need need) {
    known_.emplace_back(key);
    if (!json_.is_object()) return nullptr;
    const auto it = json_.find(std::string(key));
    if (it != json_.end()) return &*it;
    if (need == required) problem(key, "nothing", "a value", "the key is missing");
    return nullptr;
  }
  // The value itself, out of its annotation if it has one.
  const json* get(std::string_view key, Need need) {
    const json* j = find(key, need);
    if (!j || !j->is_object()) return j;
    static const std::vector<std::string> kAnnotations = {"value", "unit", "source", "date", "note"};
    for (const auto& [k, value] : j->items())
      if (std::ranges::find(kAnnotations, k) == kAnnotations.end())
        problem(fmt::format("{}.{}", key, k), shown(value), one_of(kAnnotations),
                suggestion(k, kAnnotations));
      else if (k != "value" && !value.is_string())
        problem(fmt::format("{}.{}", key, k), shown(value), "a text in quotes");
    if (const auto it = j->find("value"); it != j->end()) return &*it;
    problem(key, shown(*j), "a value, or an object with \"value\", \"source\" and \"date\"");
    return nullptr;
  }
  bool read(std::string_view key, double& out, const Range& r, Need need) {
    const json* j = get(key, need);
    if (!j) return false;
    if (!j->is_number()) return wrong(key, *j, describe(r)), false;
    out = j->get<double>();
    if (inside(out, r)) return true;
    return problem(key, fmt::format("{:g}", out), describe(r)), false;
  }

  const json& json_;
  std::vector<std::string> known_;
};

bool close(double a, double b) { return std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b)); }

// What no single field shows: how the fields fit together.
void check_together(const ClusterSpec& c, std::vector<Problem>& problems) {
  const auto add = [&](std::string key, std::string value, std::string expected, std::string hint = "") {
    problems.push_back({"", std::move(key), std::move(value), std::move(expected), std::move(hint)});
  };
  const NodeSpec& n = c.node;
  if (static_cast<long>(c.nodes) * n.gpus > kMaxGpus)
    add("nodes", fmt::format("{} nodes of {} GPUs", c.nodes, n.gpus),
        fmt::format("at most {} GPUs", kMaxGpus));
  const double nics = n.nics * n.nic_bandwidth.v;
  if (!close(nics, c.fabric.bandwidth.v))
    add("fabric.bandwidth_GBps", fmt::format("{:g}", c.fabric.bandwidth.v / 1e9),
        fmt::format("{:g}, that is node.nics * node.nic_bandwidth_GBps = {} * {:g}", nics / 1e9, n.nics,
                    n.nic_bandwidth.v / 1e9),
        "the two contradict each other: give only one of them");
  if (c.nodes > n.domain_nodes && c.fabric.bandwidth.v <= 0)
    add("fabric.bandwidth_GBps", "0", fmt::format("a network between {} nodes", c.nodes),
        "use nodes = 1, or choose a fabric with bandwidth");
  if (n.domain_nodes > 1 && n.link != NodeLinkKind::nvswitch)
    add("node.domain_nodes", std::to_string(n.domain_nodes), "1 unless node.link is nvswitch");
  if (n.nvls && n.link != NodeLinkKind::nvswitch)
    add("node.nvls", "true", "false unless node.link is nvswitch");
  for (std::size_t i = 0; i < c.defects.size(); ++i) {
    const Defect& d = c.defects[i];
    if (d.node >= c.nodes)
      add(fmt::format("defects[{}].node", i), std::to_string(d.node),
          fmt::format("a node from 0 to {}", c.nodes - 1));
    if (d.gpu >= n.gpus)
      add(fmt::format("defects[{}].gpu", i), std::to_string(d.gpu),
          fmt::format("a GPU from 0 to {}, or -1 for the whole node", n.gpus - 1));
  }
  if (problems.empty() && c.gpus() < 1) add("defects", "every GPU is missing", "at least one usable GPU");
}

}  // namespace

std::vector<Problem> validate(const ClusterSpec& c) {
  std::vector<Problem> problems;
  Checker checker("", problems);
  visit_cluster(checker, c);
  check_together(c, problems);
  return problems;
}

void to_json(json& j, const ClusterSpec& c) {
  Writer writer(j);
  visit_cluster(writer, c);
}

void from_json(const json& j, ClusterSpec& out) {
  std::vector<Problem> problems;
  ClusterSpec c;
  Reader reader(j, "", problems);
  visit_cluster(reader, c);
  reader.finish();
  // One number of the network's rate is enough.
  const auto given = [&](const char* part, const char* key) {
    return j.is_object() && j.contains(part) && j[part].is_object() && j[part].contains(key);
  };
  if (!given("fabric", "bandwidth_GBps"))
    c.fabric.bandwidth = BytesPerSecond(c.node.nics * c.node.nic_bandwidth.v);
  if (!given("node", "nic_bandwidth_GBps") && c.node.nics > 0)
    c.node.nic_bandwidth = BytesPerSecond(c.fabric.bandwidth.v / c.node.nics);
  if (problems.empty()) problems = validate(c);
  if (!problems.empty()) throw ConfigError(std::move(problems));
  out = std::move(c);
}

}  // namespace sextant
