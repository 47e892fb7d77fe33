#include "runtime/execution/executor.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <thread>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "runtime/devices/make_device.hpp"

namespace sextant {

Executor::Executor(const ExecutionGraph& graph, Device& device, OpLauncher launcher, ExecutorOptions options)
    : graph_(graph),
      device_(device),
      launcher_(std::move(launcher)),
      options_(std::move(options)),
      view_(graph, options_.stage),
      memory_(graph, view_),
      streams_(graph.lanes.size(), -1),
      awaited_(graph.ops.size(), false),
      begin_(graph.ops.size()),
      end_(graph.ops.size()),
      replay_(options_.replay) {
  for (const LaneId lane : view_.lanes())
    streams_[lane] = device.create_stream(std::string(name(graph.lanes[lane].kind)));
  for (const OpId op : view_.ops())
    for (const OpId dep : graph.deps_of(graph.ops[op]))
      if (view_.mine(dep) && view_.lane(dep) != view_.lane(op)) awaited_[dep] = true;
  if (options_.adversarial_seed) {
    order_ = random_topological_order(graph, *options_.adversarial_seed);
    std::erase_if(order_, [&](OpId op) { return !view_.mine(op); });
  } else {
    order_ = view_.ops();
    if (options_.repeats && device.captures()) find_runs();
  }
}

// A program of one op saves nothing.
void Executor::find_runs() {
  const auto fits = [&](OpId op) {
    return graph_.lanes[view_.lane(op)].kind == LaneKind::compute && options_.repeats(op);
  };
  const auto waits = [&](OpId op) {
    return std::ranges::any_of(graph_.deps_of(graph_.ops[op]), [&](OpId dep) {
      return view_.mine(dep) && view_.lane(dep) != view_.lane(op);
    });
  };
  for (std::size_t i = 0; i < order_.size();) {
    std::size_t end = i + 1;
    if (fits(order_[i]))
      while (end < order_.size() && fits(order_[end]) && view_.lane(order_[end]) == view_.lane(order_[i]) &&
             !awaited_[order_[end - 1]] && !waits(order_[end]))
        ++end;
    if (end - i > 1) runs_.push_back({i, end, {}, false});
    i = end;
  }
}

void Executor::run_step(SpanRecorder* recorder, bool as_ever) {
  memory_.restart();
  recording_ = recorder && options_.time_ops;
  lane_ends_.assign(graph_.lanes.size(), Event{});
  if (options_.timer) options_.timer->begin_step(options_.rank);
  const Seconds start = device_.now();
  if (options_.watchdog) options_.watchdog->enter(options_.rank, device_, view_);
  std::exception_ptr error;
  const bool may_replay = as_ever && !recording_ && !runs_.empty();
  auto run = may_replay && replay_.next() ? runs_.begin() : runs_.end();
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const OpId op = order_[i];
    try {
      if (run != runs_.end() && run->first == i) {
        issue(*run);
        i = run->last - 1;
        ++run;
      } else {
        issue(op);
      }
    } catch (const Aborted&) {
      error = std::current_exception();
      break;
    } catch (const std::exception& e) {
      error = std::make_exception_ptr(BackendError(fmt::format("{}: {}", op_name(graph_, op), e.what())));
      if (options_.on_failure) options_.on_failure(fmt::format("{}: {}", op_name(graph_, op), e.what()));
      break;
    }
  }
  finish(error);
  if (may_replay) replay_.took(device_.now() - start);
  if (recording_)
    for (const OpId op : view_.ops())
      recorder->record(options_.rank, op,
                       {(*device_.reached(begin_[op]) - start).v, (*device_.reached(end_[op]) - start).v});
}

void Executor::issue(OpId op) {
  const LaneId lane = view_.lane(op);
  const StreamId stream = streams_[lane];
  const bool waits = wait_for_others(op, stream);
  const bool timed = recording_ || options_.watchdog;
  // An event is a gap between kernels: where nobody measures, an op begins with the end of the one before.
  Event& last = lane_ends_[lane];
  if (timed) begin_[op] = !recording_ && !waits && last.state ? last : device_.record(stream);
  memory_.begin(op);
  launch(op, stream);
  memory_.end(op);
  if (timed || awaited_[op]) last = end_[op] = device_.record(stream);
  if (options_.watchdog) options_.watchdog->issued(options_.rank, op, begin_[op], end_[op]);
  if (options_.adversarial_seed) device_.synchronize(device_.record(stream));
}

// Dependencies on other stages' ops are kept by the transfer or collective itself.
bool Executor::wait_for_others(OpId op, StreamId stream) {
  bool waits = false;
  for (const OpId dep : graph_.deps_of(graph_.ops[op]))
    if (view_.mine(dep) && view_.lane(dep) != view_.lane(op)) {
      device_.wait(stream, end_[dep]);
      waits = true;
    }
  return waits;
}

// All ops of a run begin and end with it: nobody waits for one in its middle.
void Executor::issue(Run& run) {
  const std::span<const OpId> ops(order_.data() + run.first, run.last - run.first);
  const StreamId stream = streams_[view_.lane(ops.front())];
  wait_for_others(ops.front(), stream);
  const Event begin = options_.watchdog ? device_.record(stream) : Event{};
  if (!run.program && !run.refused) capture(run, stream);
  for (const OpId op : ops) {
    memory_.begin(op);
    memory_.end(op);
  }
  if (run.program && !device_.replay(stream, run.program)) {  // once more, with what has changed
    capture(run, stream);
    if (run.program && !device_.replay(stream, run.program)) run = {run.first, run.last, {}, true};
  }
  if (run.program) {
    ++programs_.replayed;
    programs_.ops += static_cast<std::int64_t>(ops.size());
  } else {
    for (const OpId op : ops) launch(op, stream);
  }
  const Event end = lane_ends_[view_.lane(ops.front())] = device_.record(stream);
  for (const OpId op : ops) {
    begin_[op] = begin;
    end_[op] = end;
  }
  if (options_.watchdog)
    for (const OpId op : ops) options_.watchdog->issued(options_.rank, op, begin, end);
}

void Executor::capture(Run& run, StreamId stream) {
  run.program = {};
  device_.begin_capture(stream);
  bool refused = false;
  try {
    for (std::size_t i = run.first; i < run.last; ++i) launcher_(order_[i], stream);
  } catch (const BackendError&) {  // if it was not for the capture, launching them will say so
    refused = true;
  }
  run.program = device_.end_capture(stream);
  if (refused) run.program = {};
  run.refused = !run.program;
  programs_.refused += run.refused;
}

void Executor::launch(OpId op, StreamId stream) {
  const Seconds least = options_.least_time ? options_.least_time(op) : Seconds(0);
  if (least.v <= 0) return launch_timed(op, stream);
  using Clock = std::chrono::steady_clock;
  const auto begin = std::make_shared<Clock::time_point>();
  device_.launch_host(stream, [begin] { *begin = Clock::now(); });
  launch_timed(op, stream);
  device_.launch_host(stream, [begin, least] {
    std::this_thread::sleep_until(*begin + std::chrono::duration<double>(least.v));
  });
}

void Executor::launch_timed(OpId op, StreamId stream) {
  if (!options_.timer) return launcher_(op, stream);
  options_.timer->begin_launch(options_.rank, op);
  try {
    launcher_(op, stream);
  } catch (...) {
    options_.timer->end_launch();
    throw;
  }
  options_.timer->end_launch();
}

// Waits for every lane, then throws the cause rather than what it led to.
void Executor::finish(std::exception_ptr cause) {
  for (const LaneId lane : view_.lanes()) {
    try {
      device_.synchronize(device_.record(streams_[lane]));
    } catch (const Aborted&) {
      if (!cause) cause = std::current_exception();
    } catch (...) {
      bool only_aborted = !cause;
      try {
        if (cause) std::rethrow_exception(cause);
      } catch (const Aborted&) {
        only_aborted = true;
      } catch (...) {
      }
      if (only_aborted) cause = std::current_exception();
    }
  }
  if (options_.watchdog) options_.watchdog->leave(options_.rank);
  if (cause) std::rethrow_exception(cause);
}

OpLauncher virtual_launcher(const ExecutionGraph& graph, Device& device, std::vector<Seconds> durations,
                            OpMeeting meeting) {
  return [&graph, &device, durations = std::move(durations), meeting = std::move(meeting)](OpId op,
                                                                                           StreamId stream) {
    device.launch(stream, [&, op](NativeStream native) {
      Seconds& clock = virtual_clock(native);
      if (Communicator* peers = meeting(op))
        peers->all_reduce(&clock.v, &clock.v, 1, Dtype::fp64, Reduction::max, native);
      clock += durations[graph.ops[op].work];
    });
  };
}

}  // namespace sextant
