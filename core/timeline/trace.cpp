#include "core/timeline/trace.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <zlib.h>

#include "core/base/file_io.hpp"
#include "core/graph/graph_memory.hpp"

namespace sextant {
namespace {

using Text = fmt::memory_buffer;
auto out(Text& b) { return std::back_inserter(b); }

// Whole nanoseconds, so that a slice which begins when another ends does so in the file as well.
std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// Of a trace's unit, the microsecond, as text.
std::string us(std::int64_t ns) { return fmt::format("{:.3f}", static_cast<double>(ns) / 1e3); }
std::string us(double seconds) { return us(nanoseconds(seconds)); }
std::string duration_us(double start, double end) { return us(nanoseconds(end) - nanoseconds(start)); }

void process_names(Text& b, int pid, std::string_view name) {
  fmt::format_to(out(b),
                 R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"{}"}}}},)"
                 "\n",
                 pid, name);
  fmt::format_to(out(b),
                 R"({{"ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}}}},)"
                 "\n",
                 pid, pid);
}

void thread_name(Text& b, int pid, int tid, std::string_view name) {
  fmt::format_to(out(b),
                 R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}},)"
                 "\n",
                 pid, tid, name);
}

// What stands between two commas is an event.
std::string without_last_comma(const Text& b) {
  std::string events = fmt::to_string(b);
  if (events.ends_with(",\n")) events.resize(events.size() - 2);
  return events;
}

void trace_names(Text& b, const ExecutionGraph& g, const TraceOptions& o) {
  std::vector<char> used(g.lanes.size(), 0);
  for (const Op& op : g.ops)
    for (const LaneId lane : op.lanes)
      if (lane != kNoLane) used[lane] = 1;
  const int stages = static_cast<int>(g.lanes.size()) / kLaneKinds;
  for (int s = 0; s < stages; ++s) process_names(b, o.first_process + s, fmt::format("{} {}", o.prefix, s));
  for (std::size_t lane = 0; lane < g.lanes.size(); ++lane)
    if (used[lane])
      thread_name(b, o.first_process + g.lanes[lane].stage, static_cast<int>(g.lanes[lane].kind),
                  name(g.lanes[lane].kind));
}

void span(Text& b, const ExecutionGraph& g, OpId id, LaneId lane, Span at, int first_process) {
  const Op& op = g.ops[id];
  fmt::format_to(out(b),
                 R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":"{}","cat":"{}","args":{{"op":{})",
                 first_process + lane / kLaneKinds, lane % kLaneKinds, us(at.start),
                 duration_us(at.start, at.end), op_name(g, id), name(op.role), id);
  fmt::format_to(out(b),
                 R"(,"work":"{}"}}}},)"
                 "\n",
                 work_key(g.works[op.work]));
}

struct FlowEnd {
  LaneId lane = kNoLane;
  double at = 0;  // inside a span of the lane
};

void flow(Text& b, const char* what, std::size_t id, FlowEnd from, FlowEnd to, int first_process) {
  const auto end = [&](const char* phase, FlowEnd e) {
    fmt::format_to(out(b),
                   R"({{"ph":{},"id":{},"pid":{},"tid":{},"ts":{},"name":"{}","cat":"{}"}},)"
                   "\n",
                   phase, id, first_process + e.lane / kLaneKinds, e.lane % kLaneKinds, us(e.at), what, what);
  };
  end(R"("s")", from);
  end(R"("f","bp":"e")", to);
}

// Collectives of TP and CP stand between any two operations of a layer: arrows to them would hide the others.
bool is_inside_layers(LaneKind kind) {
  return kind == LaneKind::compute || kind == LaneKind::tp || kind == LaneKind::cp;
}

// From the operation of another lane that an operation waited for last: what lets a reduction, a gather or a copy begin.
void wait(Text& b, const ExecutionGraph& g, const Timeline& t, OpId id, int first_process) {
  const Op& op = g.ops[id];
  OpId last = id;
  for (const OpId dep : g.deps_of(op))
    if (last == id || t.spans[dep].end > t.spans[last].end) last = dep;
  if (last == id) return;
  const LaneId from = g.ops[last].lanes[0], to = op.lanes[0];
  if (from == to || g.ops[last].lanes[1] != kNoLane || op.lanes[1] != kNoLane) return;
  if (is_inside_layers(g.lanes[from].kind) && is_inside_layers(g.lanes[to].kind)) return;
  const Span& before = t.spans[last];
  flow(b, "wait", g.ops.size() + id, {from, (before.start + before.end) / 2}, {to, t.spans[id].start},
       first_process);
}

// Where a stage's holdings change, in order of issue as its memory is reported. The compute lane is the clock: what is issued
// between two of its operations is spread over the time of the first.
void memory(Text& b, const ExecutionGraph& g, const Timeline& t, const TraceOptions& o) {
  const auto stages = g.lanes.size() / kLaneKinds;
  std::vector<std::vector<OpId>> computes(stages);
  double end = 0;
  for (OpId id = 0; id < g.ops.size(); ++id) {
    const Lane& lane = g.lanes[g.ops[id].lanes[0]];
    if (lane.kind == LaneKind::compute) computes[lane.stage].push_back(id);
    end = std::max(end, t.spans[id].end);
  }
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const MemoryWalk walked = walk(g, static_cast<int>(stage));
    // Viewers pile the parts of a counter up: what lies on the host is another one.
    const auto counter_of = [&](const char* counted, bool host, double when, const HeldBytes& held) {
      fmt::format_to(out(b), R"({{"ph":"C","pid":{},"ts":{},"name":"{}","args":{{)",
                     o.first_process + static_cast<int>(stage), us(when), counted);
      const char* comma = "";
      for (std::size_t k = 0; k < kBufferKinds; ++k) {
        const auto kind = static_cast<BufferKind>(k);
        if ((kind == BufferKind::host) != host) continue;
        fmt::format_to(out(b), R"({}"{}":{:.4f})", std::exchange(comma, ","), name(kind),
                       gib(Bytes(held.by_kind[k])));
      }
      fmt::format_to(out(b), "}}}},\n");
    };
    const auto counter = [&](double when, const HeldBytes& held) {
      counter_of("memory_GiB", false, when, held);
      if (walked.host_peak.v > 0) counter_of("host_memory_GiB", true, when, held);
    };
    const std::vector<OpId>& clock = computes[stage];
    counter(0, walked.resident);
    for (std::size_t i = 0; i < walked.curve.size();) {
      const auto next = std::ranges::upper_bound(clock, walked.curve[i].op);
      const double from = next == clock.begin() ? 0 : t.spans[*(next - 1)].start,
                   until = next == clock.end() ? end : t.spans[*next].start;
      std::size_t n = 1;
      while (i + n < walked.curve.size() && (next == clock.end() || walked.curve[i + n].op < *next)) ++n;
      for (std::size_t k = 0; k < n; ++k, ++i)
        counter(from + (until - from) * static_cast<double>(k) / static_cast<double>(n),
                walked.curve[i].held);
    }
    counter(end, walked.resident);
  }
}
}  // namespace

std::string trace_events(const ExecutionGraph& g, const Timeline& t, const TraceOptions& o) {
  SEXTANT_CHECK(t.spans.size() == g.ops.size(), "a timeline has one span per operation");
  Text b;
  trace_names(b, g, o);
  for (OpId id = 0; id < g.ops.size(); ++id) {
    const Op& op = g.ops[id];
    span(b, g, id, op.lanes[0], t.spans[id], o.first_process);
    wait(b, g, t, id, o.first_process);
    if (op.lanes[1] == kNoLane) continue;
    span(b, g, id, op.lanes[1], t.spans[id], o.first_process);
    flow(b, "send", id, {op.lanes[0], t.spans[id].start}, {op.lanes[1], t.spans[id].start}, o.first_process);
  }
  if (o.memory && !g.operands.empty()) memory(b, g, t, o);
  return without_last_comma(b);
}

std::string trace_step(const Timeline& t, std::span<const TracePart> behind, int process) {
  Text b;
  process_names(b, process, "step");
  thread_name(b, process, 0, "parts");
  double end = 0;
  const auto slice = [&](std::string_view name, double seconds) {
    if (seconds <= 0) return;
    fmt::format_to(out(b),
                   R"({{"ph":"X","pid":{},"tid":0,"ts":{},"dur":{},"name":"{}","cat":"step"}},)"
                   "\n",
                   process, us(end), duration_us(end, end + seconds), name);
    end += seconds;
  };
  slice("operations", t.makespan().v);
  for (const TracePart& part : behind) slice(part.name, part.seconds);
  return without_last_comma(b);
}

void write_trace(const std::filesystem::path& path, const std::string& events) {
  const std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events + "\n]}\n";
  if (path.extension() != ".gz") return write_file_atomic(path, text);
  z_stream stream{};
  constexpr int kGzip = 15 + 16;  // window bits, gzip header
  SEXTANT_CHECK(deflateInit2(&stream, 6, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const int result = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  SEXTANT_CHECK(result == Z_STREAM_END, "zlib");
  write_file_atomic(path, packed);
}

}  // namespace sextant
