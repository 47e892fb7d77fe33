#include "runtime/execution/arena.hpp"

#include <algorithm>
#include <limits>

#include "core/base/error.hpp"

namespace sextant {

namespace {

constexpr std::int64_t kAlignment = 64;  // bytes; as Device::allocate

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// First and last use of a buffer on each lane of the stage.
struct Uses {
  struct OnLane {
    int lane = 0;
    OpId first = 0, last = 0;
  };
  std::vector<OnLane> lanes;

  void add(int lane, OpId op) {
    for (auto& l : lanes)
      if (l.lane == lane) return void(l.last = op);
    lanes.push_back({lane, op, op});
  }
};

struct Placed {
  BufferId buffer = 0;
  std::int64_t begin = 0, end = 0;
};

// The lowest gap, or the one that leaves least beside it: chunks by turns free what lies between others', and what is a little
// smaller must not take the place of what is larger.
enum class Fit : std::uint8_t { lowest, tightest };

class Packer {
 public:
  Packer(const ExecutionGraph& graph, const StageView& view)
      : graph_(graph), view_(view), before_(graph, view), uses_(graph.buffers.size()) {
    lane_ops_.resize(static_cast<std::size_t>(before_.lanes()));
    for (const OpId op : view.ops()) {
      lane_ops_[static_cast<std::size_t>(before_.lane_index(op))].push_back(op);
      for (const Operand& operand : graph.operands_of(graph.ops[op]))
        if (graph.buffers[operand.buffer].stage == view.stage())
          uses_[operand.buffer].add(before_.lane_index(op), op);
    }
  }

  ArenaPlan run(Fit fit) {
    fit_ = fit;
    active_ = {};
    kept_ = {};
    next_.assign(lane_ops_.size(), 0);
    ArenaPlan plan;
    plan.offset.assign(graph_.buffers.size(), ArenaPlan::kNotHere);
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      const Buffer& buffer = graph_.buffers[b];
      if (buffer.stage != view_.stage() || !buffer.resident) continue;
      auto& extent = plan.extent[static_cast<std::size_t>(space_of(buffer.kind))];
      plan.offset[b] = extent;
      extent += aligned(buffer.bytes);
    }
    const auto base = plan.extent;
    for (const OpId op : view_.ops()) {
      for (const Operand& operand : graph_.operands_of(graph_.ops[op])) {
        const Buffer& buffer = graph_.buffers[operand.buffer];
        if (buffer.stage != view_.stage() || plan.offset[operand.buffer] != ArenaPlan::kNotHere) continue;
        const auto space = static_cast<std::size_t>(space_of(buffer.kind));
        const auto begin = place(space, operand.buffer, base[space]);
        plan.offset[operand.buffer] = begin;
        plan.extent[space] = std::max(plan.extent[space], begin + aligned(buffer.bytes));
      }
      ++next_[static_cast<std::size_t>(before_.lane_index(op))];
    }
    return plan;
  }

 private:
  // A gap among the buffers that may still be in use when `b` comes in.
  std::int64_t place(std::size_t space, BufferId b, std::int64_t base) {
    auto& active = active_[space];
    if (active.size() > 2 * kept_[space] + 16) {
      std::erase_if(active, [&](const Placed& a) { return over(a.buffer); });
      kept_[space] = active.size();
    }
    const auto bytes = aligned(graph_.buffers[b].bytes);
    std::int64_t at = base, tightest = base, waste = std::numeric_limits<std::int64_t>::max();
    auto where = active.begin();  // sorted by begin
    for (auto a = active.begin(); a != active.end(); ++a) {
      if (fit_ == Fit::lowest && a->begin >= at + bytes) break;
      if (a->end <= at || over_before(a->buffer, b)) continue;
      if (const std::int64_t gap = a->begin - at; gap >= bytes && gap - bytes < waste) {
        tightest = at;
        waste = gap - bytes;
      }
      at = a->end;
    }
    if (waste < std::numeric_limits<std::int64_t>::max()) at = tightest;
    while (where != active.end() && where->begin < at) ++where;
    active.insert(where, {b, at, at + bytes});
    return at;
  }

  bool over_before(BufferId a, BufferId b) const {
    return std::ranges::all_of(uses_[b].lanes, [&](const auto& use) { return over_before_op(a, use.first); });
  }
  bool over_before_op(BufferId a, OpId op) const {
    return std::ranges::all_of(uses_[a].lanes, [&](const auto& use) { return before_(use.last, op); });
  }
  // Whatever comes next on any lane comes after all uses of `a`.
  bool over(BufferId a) const {
    for (std::size_t lane = 0; lane < lane_ops_.size(); ++lane)
      if (next_[lane] < lane_ops_[lane].size() && !over_before_op(a, lane_ops_[lane][next_[lane]]))
        return false;
    return true;
  }

  const ExecutionGraph& graph_;
  const StageView& view_;
  Fit fit_ = Fit::lowest;
  HappensBefore before_;
  std::vector<Uses> uses_;
  std::vector<std::vector<OpId>> lane_ops_;
  std::vector<std::size_t> next_;
  std::array<std::vector<Placed>, 2> active_;
  std::array<std::size_t, 2> kept_{};
};

}  // namespace

MemoryLedger::MemoryLedger(const ExecutionGraph& graph, const StageView& view)
    : graph_(graph), mine_(graph.buffers.size(), false), users_(graph.buffers.size(), 0) {
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    if (buffer.stage != view.stage()) continue;
    mine_[b] = !buffer.resident;
    if (buffer.resident) resident_[buffer.kind] += buffer.bytes;
  }
  for (const OpId op : view.ops())
    for (const Operand& operand : graph.operands_of(graph.ops[op])) ++users_[operand.buffer];
  each_ = at_peak_[0] = at_peak_[1] = resident_;
  restart();
}

void MemoryLedger::restart() {
  left_ = users_;
  alive_.assign(users_.size(), false);
  now_ = resident_;
}

void MemoryLedger::begin(OpId op) {
  for (const Operand& operand : graph_.operands_of(graph_.ops[op])) {
    if (!mine_[operand.buffer] || alive_[operand.buffer]) continue;
    alive_[operand.buffer] = true;
    const Buffer& buffer = graph_.buffers[operand.buffer];
    now_[buffer.kind] += buffer.bytes;
    each_[buffer.kind] = std::max(each_[buffer.kind], now_[buffer.kind]);
  }
  for (const Space space : {Space::device, Space::host})
    if (held_in(now_, space) > peak(space)) at_peak_[static_cast<std::size_t>(space)] = now_;
}

void MemoryLedger::end(OpId op) {
  for (const Operand& operand : graph_.operands_of(graph_.ops[op])) {
    if (!mine_[operand.buffer]) continue;
    SEXTANT_CHECK(left_[operand.buffer] > 0, "an op ends once");
    if (--left_[operand.buffer] > 0) continue;
    const Buffer& buffer = graph_.buffers[operand.buffer];
    alive_[operand.buffer] = false;
    now_[buffer.kind] -= buffer.bytes;
  }
}

ArenaPlan plan_arena(const ExecutionGraph& graph, const StageView& view) {
  Packer packer(graph, view);
  ArenaPlan lowest = packer.run(Fit::lowest), tightest = packer.run(Fit::tightest);
  return tightest.extent[0] < lowest.extent[0] ? tightest : lowest;
}

constexpr std::int64_t kScratchStart = 1024;  // bytes; scratch begins at a multiple

std::int64_t with_scratch(const ArenaPlan& plan, std::int64_t scratch) {
  const std::int64_t buffers = plan.extent[static_cast<std::size_t>(Space::device)];
  return scratch > 0 ? (buffers + kScratchStart - 1) / kScratchStart * kScratchStart + scratch : buffers;
}

Arena::Arena(Device& device, const ExecutionGraph& graph, ArenaPlan plan, std::int64_t scratch)
    : device_(device), graph_(graph), plan_(std::move(plan)) {
  for (const Space space : {Space::device, Space::host}) {
    const auto s = static_cast<std::size_t>(space);
    const std::int64_t bytes = space == Space::device ? with_scratch(plan_, scratch) : plan_.extent[s];
    if (bytes > 0) memory_[s] = Allocation(device, space, Bytes(bytes));
    if (space == Space::device) bytes_ = bytes;
  }
}

std::byte* Arena::scratch() const { return memory_[0].data() + with_scratch(plan_, 1) - 1; }

std::byte* Arena::at(BufferId buffer) const {
  SEXTANT_CHECK(plan_.offset[buffer] != ArenaPlan::kNotHere, "the buffer is one of this stage and is used");
  const auto space = static_cast<std::size_t>(space_of(graph_.buffers[buffer].kind));
  return memory_[space].data() + plan_.offset[buffer];
}

void Arena::fill(std::span<const std::byte> pattern) {
  std::byte* const begin = memory_[0].data();
  std::int64_t filled = std::min<std::int64_t>(bytes_, std::ssize(pattern));
  if (filled == 0) return;
  device_.transfer(begin, pattern.data(), Bytes(filled));
  for (; filled < bytes_; filled += std::min(filled, bytes_ - filled))
    device_.transfer(begin + filled, begin, Bytes(std::min(filled, bytes_ - filled)));
}

}  // namespace sextant
