#include <algorithm>

#include "core/graph/checks/problem_list.hpp"

namespace sextant {
namespace {

using checks::ProblemList;

constexpr OpId kNobody = std::numeric_limits<OpId>::max();

// "Is over before", by dependencies and lane order: a vector clock per op with an entry for every lane in use.
// Mattern, Virtual time and global states of distributed systems (1989). A transfer counts on both of its lanes.
class Clocks {
 public:
  explicit Clocks(const ExecutionGraph& g)
      : graph_(g), column_(g.lanes.size(), kUnused), position_(g.ops.size()) {
    for (const Op& op : g.ops)
      for (const LaneId lane : op.lanes)
        if (lane != kNoLane && column_[lane] == kUnused) column_[lane] = width_++;
    clocks_.assign(g.ops.size() * width_, 0);
    std::vector<OpId> last(g.lanes.size(), kNobody);
    std::vector<std::uint32_t> count(width_, 0);
    for (OpId i = 0; i < g.ops.size(); ++i) {
      for (const OpId dep : g.deps_of(g.ops[i])) follow(i, dep);
      for (const LaneId lane : g.ops[i].lanes) {
        if (lane == kNoLane) continue;
        if (last[lane] != kNobody) follow(i, last[lane]);
        last[lane] = i;
      }
      for (std::size_t l = 0; l < 2; ++l)
        if (const LaneId lane = g.ops[i].lanes[l]; lane != kNoLane) position_[i][l] = ++count[column_[lane]];
    }
  }

  bool before(OpId a, OpId b) const {
    return position_[a][0] <= clocks_[b * width_ + column_[graph_.ops[a].lanes[0]]];
  }

 private:
  static constexpr std::size_t kUnused = static_cast<std::size_t>(-1);

  void follow(OpId op, OpId earlier) {
    std::uint32_t* mine = clocks_.data() + op * width_;
    const std::uint32_t* other = clocks_.data() + earlier * width_;
    for (std::size_t c = 0; c < width_; ++c) mine[c] = std::max(mine[c], other[c]);
    for (std::size_t l = 0; l < 2; ++l)
      if (const LaneId lane = graph_.ops[earlier].lanes[l]; lane != kNoLane)
        mine[column_[lane]] = std::max(mine[column_[lane]], position_[earlier][l]);
  }

  const ExecutionGraph& graph_;
  std::vector<std::size_t> column_;
  std::size_t width_ = 0;
  std::vector<std::array<std::uint32_t, 2>> position_;  // from 1, on either lane
  std::vector<std::uint32_t> clocks_;                   // [op][lane in use]: how many of its ops are over
};

// The last accesses to a byte range. Of several readers on one lane the newest stands for all.
struct Stretch {
  std::int64_t begin = 0, end = 0;
  OpId writer = kNobody;
  std::vector<OpId> readers;
};

class Hazards {
 public:
  explicit Hazards(const ExecutionGraph& g) : graph_(g), clocks_(g), problems_(g), ranges_(g.buffers.size()) {
    for (BufferId b = 0; b < g.buffers.size(); ++b)
      ranges_[b].push_back({0, g.buffers[b].bytes, kNobody, {}});
  }

  std::vector<Problem> run() {
    for (OpId i = 0; i < graph_.ops.size(); ++i) {
      const auto operands = graph_.operands_of(graph_.ops[i]);
      for (const Operand& o : operands)
        if (!o.write) read(i, o);
      for (const Operand& o : operands)
        if (o.write) write(i, o);
    }
    return problems_.take();
  }

 private:
  // What the previous step may leave behind. Rings and staging buffers are resident as well, but hold nothing that
  // outlives it.
  bool carried(BufferId b) const {
    const Buffer& buffer = graph_.buffers[b];
    return buffer.resident && buffer.kind != BufferKind::communication &&
           buffer.kind != BufferKind::activation;
  }

  void ordered(OpId first, OpId second, const char* first_does, const char* second_does, const Stretch& r,
               BufferId b) {
    if (first == second || clocks_.before(first, second)) return;
    problems_.add(second,
                  fmt::format("it {} bytes [{}, {}) of buffer {} ({}) that {} {}, with nothing between them",
                              second_does, r.begin, r.end, b, name(graph_.buffers[b].kind),
                              op_label(graph_, first), first_does),
                  "a dependency or a lane that orders them");
  }

  void read(OpId op, const Operand& o) {
    visit(o, [&](Stretch& r) {
      if (r.writer != kNobody) {
        ordered(r.writer, op, "writes", "reads", r, o.buffer);
      } else if (!carried(o.buffer)) {
        problems_.add(op,
                      fmt::format("it reads bytes [{}, {}) of buffer {} ({}), which nothing has written",
                                  r.begin, r.end, o.buffer, name(graph_.buffers[o.buffer].kind)),
                      "a writer before it");
      }
      const auto same = std::find_if(r.readers.begin(), r.readers.end(), [&](OpId reader) {
        return graph_.ops[reader].lanes == graph_.ops[op].lanes;
      });
      if (same != r.readers.end())
        *same = op;
      else
        r.readers.push_back(op);
    });
  }

  void write(OpId op, const Operand& o) {
    visit(o, [&](Stretch& r) {
      if (r.writer != kNobody) ordered(r.writer, op, "writes", "writes", r, o.buffer);
      for (const OpId reader : r.readers) ordered(reader, op, "reads", "writes", r, o.buffer);
      r.writer = op;
      r.readers.clear();
    });
  }

  // Calls f with every range of the operand, having split those that lie across its ends.
  template <class F>
  void visit(const Operand& o, const F& f) {
    auto& list = ranges_[o.buffer];
    split(list, o.begin);
    split(list, o.end);
    auto it =
        std::partition_point(list.begin(), list.end(), [&](const Stretch& r) { return r.end <= o.begin; });
    for (; it != list.end() && it->begin < o.end; ++it) f(*it);
  }
  static void split(std::vector<Stretch>& list, std::int64_t at) {
    auto it = std::partition_point(list.begin(), list.end(), [&](const Stretch& r) { return r.end <= at; });
    if (it == list.end() || it->begin >= at) return;
    Stretch head = *it;
    head.end = at;
    it->begin = at;
    list.insert(it, std::move(head));
  }

  const ExecutionGraph& graph_;
  Clocks clocks_;
  ProblemList problems_;
  std::vector<std::vector<Stretch>> ranges_;  // by buffer, ascending, without gaps
};

}  // namespace

std::vector<Problem> check_hazards(const ExecutionGraph& g) { return Hazards(g).run(); }

}  // namespace sextant
