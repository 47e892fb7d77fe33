#include "core/graph/work.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/base/error.hpp"
#include "core/base/words.hpp"

namespace sextant {
namespace {

constexpr std::size_t kMaxWorkKey = 4096;

struct Extent {
  std::string_view letters;
  int BlockWork::*field;
  bool always;
};
constexpr std::array kExtents = {
    Extent{"b", &BlockWork::batch, true},        Extent{"q", &BlockWork::seq_q, false},
    Extent{"k", &BlockWork::seq_k, false},       Extent{"h", &BlockWork::hidden, false},
    Extent{"a", &BlockWork::heads, false},       Extent{"kv", &BlockWork::kv_heads, false},
    Extent{"d", &BlockWork::head_dim, false},    Extent{"f", &BlockWork::ffn, false},
    Extent{"v", &BlockWork::vocab, false},       Extent{"tp", &BlockWork::tp, true},
    Extent{"window", &BlockWork::window, false}, Extent{"c", &BlockWork::chunk, false},
};

std::string link_text(std::string_view where, BytesPerSecond bandwidth, Seconds latency) {
  if (bandwidth.v == 0 && latency.v == 0) return "";
  return fmt::format(" {}{}GBps/{}us", where, decimal(bandwidth.v, -9), decimal(latency.v, 6));
}

std::string group_text(const GroupShape& g) {
  std::string out = fmt::format(" g{} nodes{} per{}", g.size, g.nodes, g.ranks_per_node);
  out += link_text("in", g.node_bandwidth, g.node_latency);
  out += link_text("out", g.network_bandwidth, g.network_latency);
  if (g.network_start.v != 0) out += fmt::format(" start{}us", decimal(g.network_start.v, 6));
  out += link_text("queued", g.queued_bandwidth, g.queued_latency);
  if (g.switched) out += " switched";
  if (g.in_switch) out += " in_switch";
  if (g.in_network) out += " in_network";
  if (g.reduces_inside) out += " reduces_inside";
  return out;
}

struct KeyOf {
  std::string operator()(const BlockWork& w) const {
    std::string out = fmt::format("{} {} {}", name(w.kind), name(w.pass), name(w.dtype));
    for (const auto& e : kExtents)
      if (e.always || w.*e.field != 0) out += fmt::format(" {}{}", e.letters, w.*e.field);
    if (w.sequence_parallel) out += " sp";
    if (!w.gated) out += " plain";
    if (w.recompute_core) out += " core";
    if (w.bias) out += " bias";
    if (w.joined) out += " joined";
    if (w.normalized) out += " normalized";
    if (w.short_logits) out += " short";
    if (w.qk_norm != QkNorm::none)
      out += fmt::format(" qk_{}", kQkNormNames[static_cast<std::size_t>(w.qk_norm)]);
    return out;
  }
  std::string operator()(const CollectiveWork& w) const {
    return fmt::format("{} {}B{}{}", name(w.kind), w.bytes.v, group_text(w.group),
                       w.tp_overlapped ? " tp_overlapped" : "");
  }
  std::string operator()(const TransferWork& w) const {
    return fmt::format("transfer {}B{}", w.bytes.v, group_text(w.link));
  }
  std::string operator()(const CopyWork& w) const {
    return fmt::format("copy {} {}B", name(w.direction), w.bytes.v);
  }
  std::string operator()(const StateWork& w) const {
    return fmt::format("state {} n{} {} {}{}", name(w.kind), w.elements, name(w.parameter), name(w.gradient),
                       w.host ? " host" : "");
  }
};

// Takes the words of a key from left to right.
class KeyReader {
 public:
  explicit KeyReader(std::string_view key) : key_(key) {
    if (key.size() > kMaxWorkKey) fail("", fmt::format("at most {} characters", kMaxWorkKey));
    for (std::size_t begin = 0; begin < key.size();) {
      const auto end = std::min(key.find(' ', begin), key.size());
      if (end > begin) words_.push_back(key.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  Work read() {
    const std::string_view kind = word("the kind of work");
    Work work = read_kind(kind);
    if (at_ < words_.size()) fail(words_[at_], "the end of the key, or a word of its grammar in its place");
    return work;
  }

 private:
  Work read_kind(std::string_view kind) {
    if (const int i = place_among(kBlockKindNames, kind); i >= 0) return block(static_cast<BlockKind>(i));
    if (const int i = place_among(kCollectiveNames, kind); i >= 0) {
      CollectiveWork w{static_cast<CollectiveKind>(i), bytes(), group()};
      w.tp_overlapped = take("tp_overlapped");
      return w;
    }
    if (kind == "transfer") {
      TransferWork w;
      w.bytes = bytes();
      w.link = group();
      return w;
    }
    if (kind == "copy") {
      CopyWork w;
      w.direction = static_cast<CopyDirection>(one_of(kCopyNames, "a direction"));
      w.bytes = bytes();
      return w;
    }
    if (kind == "state") {
      StateWork w;
      w.kind = static_cast<StateKind>(one_of(kStateKindNames, "a pass over state"));
      w.elements = number("n", std::numeric_limits<std::int64_t>::max());
      w.parameter = static_cast<Dtype>(one_of(kDtypeNames, "the parameters' number format"));
      w.gradient = static_cast<Dtype>(one_of(kDtypeNames, "the gradients' number format"));
      w.host = take("host");
      return w;
    }
    std::vector<std::string> known{"transfer", "copy", "state"};
    known.insert(known.end(), kBlockKindNames.begin(), kBlockKindNames.end());
    known.insert(known.end(), kCollectiveNames.begin(), kCollectiveNames.end());
    const std::string near = closest(kind, known);
    fail(kind, fmt::format("one of {}", fmt::join(known, ", ")),
         near.empty() ? "" : "did you mean " + near + "?");
  }

  BlockWork block(BlockKind kind) {
    BlockWork w;
    w.kind = kind;
    w.pass = static_cast<Pass>(one_of(kPassNames, "a pass"));
    w.dtype = static_cast<Dtype>(one_of(kDtypeNames, "a number format"));
    for (const auto& e : kExtents)
      if (e.always || (at_ < words_.size() && letters(words_[at_]) == e.letters))
        w.*e.field = static_cast<int>(number(e.letters, std::numeric_limits<int>::max()));
    w.sequence_parallel = take("sp");
    w.gated = !take("plain");
    w.recompute_core = take("core");
    w.bias = take("bias");
    w.joined = take("joined");
    w.normalized = take("normalized");
    w.short_logits = take("short");
    if (take("qk_head")) w.qk_norm = QkNorm::head;
    if (take("qk_whole")) w.qk_norm = QkNorm::whole;
    return w;
  }

  GroupShape group() {
    GroupShape g;
    g.size = static_cast<int>(number("g", std::numeric_limits<int>::max()));
    g.nodes = static_cast<int>(number("nodes", std::numeric_limits<int>::max()));
    g.ranks_per_node = static_cast<int>(number("per", std::numeric_limits<int>::max()));
    link("in", g.node_bandwidth, g.node_latency);
    link("out", g.network_bandwidth, g.network_latency);
    start(g.network_start);
    link("queued", g.queued_bandwidth, g.queued_latency);
    g.switched = take("switched");
    g.in_switch = take("in_switch");
    g.in_network = take("in_network");
    g.reduces_inside = take("reduces_inside");
    return g;
  }

  void start(Seconds& start) {
    constexpr std::string_view kStart = "start", kTime = "us";
    if (at_ >= words_.size() || letters(words_[at_]) != kStart) return;
    const std::string_view text = word("a start");
    const auto time =
        text.ends_with(kTime)
            ? parse_decimal(text.substr(kStart.size(), text.size() - kStart.size() - kTime.size()), 6)
            : std::nullopt;
    if (!time) fail(text, "a start such as start30us");
    start = Seconds(*time);
  }

  void link(std::string_view where, BytesPerSecond& bandwidth, Seconds& latency) {
    constexpr std::string_view kRate = "GBps/", kTime = "us";
    if (at_ >= words_.size() || letters(words_[at_]) != where) return;
    const std::string_view original = word("a link");
    std::string_view text = original.substr(where.size());
    const auto middle = text.find(kRate);
    std::optional<double> rate, time;
    if (middle != text.npos && text.ends_with(kTime) && middle + kRate.size() + kTime.size() <= text.size()) {
      rate = parse_decimal(text.substr(0, middle), -9);
      text.remove_prefix(middle + kRate.size());
      text.remove_suffix(kTime.size());
      time = parse_decimal(text, 6);
    }
    if (!rate || !time) fail(original, fmt::format("a link such as {}235GBps/2.5us", where));
    bandwidth = BytesPerSecond(*rate);
    latency = Seconds(*time);
  }

  Bytes bytes() {
    const std::string_view text = word("a number of bytes such as 8388608B");
    const auto n = text.ends_with('B') ? parse_count(text.substr(0, text.size() - 1),
                                                     std::numeric_limits<std::int64_t>::max())
                                       : std::nullopt;
    if (!n) fail(text, "a number of bytes such as 8388608B");
    return Bytes(*n);
  }

  std::int64_t number(std::string_view prefix, std::int64_t max) {
    const std::string expected = fmt::format("{} and a whole number of at most {}", prefix, max);
    const std::string_view text = word(expected);
    const auto n = letters(text) == prefix ? parse_count(text.substr(prefix.size()), max) : std::nullopt;
    if (!n) fail(text, expected);
    return *n;
  }

  int one_of(const auto& names, std::string_view what) {
    const std::string expected = fmt::format("{}: {}", what, fmt::join(names, ", "));
    const std::string_view text = word(expected);
    const int i = place_among(names, text);
    if (i < 0) fail(text, expected);
    return i;
  }

  static std::string_view letters(std::string_view text) {
    return text.substr(0, std::min(text.find_first_of("0123456789-"), text.size()));
  }
  bool take(std::string_view expected) {
    if (at_ >= words_.size() || words_[at_] != expected) return false;
    ++at_;
    return true;
  }
  std::string_view word(std::string_view expected) {
    if (at_ >= words_.size()) fail("the end of the key", std::string(expected));
    return words_[at_++];
  }
  [[noreturn]] void fail(std::string_view found, std::string expected, std::string hint = "") const {
    throw ConfigError(Problem{"", fmt::format("operation key \"{}\"", key_.substr(0, 200)),
                              fmt::format("'{}'", found), std::move(expected), std::move(hint)});
  }

  std::string_view key_;
  std::vector<std::string_view> words_;
  std::size_t at_ = 0;
};

}  // namespace

std::string work_key(const Work& work) { return std::visit(KeyOf{}, work); }

Work parse_work_key(std::string_view key) { return KeyReader(key).read(); }

}  // namespace sextant
