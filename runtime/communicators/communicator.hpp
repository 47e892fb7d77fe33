// How ranks of a group exchange data. Narrow on purpose: what every backend can honour, nothing else.
//
// Sums are taken element by element in pairs of neighbouring ranks (runtime/communicators/ordered_sum.hpp), in fp32 (fp64 for fp64
// data) and rounded once. So results depend neither on timing nor on the backend, nor on whether aligned groups of 2^k
// ranks are summed first. Shards may be uneven or empty.
//
// In place: `out` may be exactly `in` (all_reduce), rank's own slice of `out` may be `in` (all_gather),
// rank's own slice of `in` may be `out` (reduce_scatter). Any other overlap is an error. `in` is never
// written elsewhere.
//
// A call belongs to the stream it is given. On CPU ranks it runs on the lane's thread and returns when done;
// on a GPU it is enqueued and returns at once; without a stream it is about the host's memory, and returns when
// done. One communicator serves one lane: calls on it must not overlap
// in time, and all members must make them in the same order. Lanes that run at the same time use
// communicators of their own, made with group().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/error.hpp"
#include "core/base/units.hpp"
#include "kernels/native_stream.hpp"

namespace sextant {

// Thrown by calls that another rank, or the watchdog, has ended: a consequence, never the cause.
class Aborted : public BackendError {
 public:
  explicit Aborted(const std::string& reason) : BackendError("aborted: " + reason) {}
};

enum class Reduction : std::uint8_t { sum, max };

// What was under way has ended with a rank that is gone; the others go on without it (Communicator::regroup). Only where the job
// outlives that (TcpWorld::outlives_ranks).
class RankLost : public Aborted {
 public:
  using Aborted::Aborted;
};

class Communicator;
// Those that are left of a world, in the order that they had there.
struct Regrouped {
  std::unique_ptr<Communicator> world;
  std::vector<int> before;  // by rank: its rank in the world that lost one
};

// Ranks of the world that others wait for.
struct Stalls {
  std::vector<int> silent;  // give no sign of life
  std::vector<int> busy;    // answer, and wait for no message themselves; looked for when nobody is silent
  std::string states;       // what the others say of themselves, in order of rank, lines
  bool over = false;        // the run was ended by another rank meanwhile: what is late here says nothing
};
inline constexpr Seconds kRollCall{2.0};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // out[i] = reduction over ranks of in[i], on every rank.
  virtual void all_reduce(const void* in, void* out, std::int64_t count, Dtype, Reduction, NativeStream) = 0;
  // in: sum(counts) elements; out: counts[rank()] elements, the rank's slice of the reduction.
  virtual void reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, Dtype,
                              Reduction, NativeStream) = 0;
  // in: bytes[rank()] bytes; out: sum(bytes) bytes, slices in rank order.
  virtual void all_gather(const void* in, void* out, std::span<const std::int64_t> bytes, NativeStream) = 0;
  virtual void broadcast(void* data, std::int64_t bytes, int root, NativeStream) = 0;
  // A send may wait until its receive is posted; the sizes must agree.
  virtual void send(const void* data, std::int64_t bytes, int peer, NativeStream) = 0;
  virtual void recv(void* data, std::int64_t bytes, int peer, NativeStream) = 0;
  virtual void barrier(NativeStream) = 0;

  // The group of these ranks of this communicator, numbered by their place in the list; the caller is one of
  // them. Collective over the members, which make their groups in the same order. Asking twice for the same
  // ranks gives two independent communicators.
  virtual std::unique_ptr<Communicator> group(std::span<const int> ranks) = 0;

  // Who holds the run up among ranks of other processes: all are asked, which takes up to kRollCall. Callable from any
  // thread; nobody where the backend does not know.
  virtual Stalls stalls() { return {}; }
  // What this process says of itself when another one asks that: lines, called on any thread until this and every related
  // communicator has gone. Only where ranks are processes.
  virtual void answer_with(const std::function<std::string()>&) {}

  // Behind a RankLost, on every rank that is left and where nothing of the world is under way any more: a new world of those.
  // One that does not come within the patience is left out, as long as fewer are than come. Throws Aborted when this rank is
  // the one that was left out, or the job has ended; what another loss meanwhile ends throws RankLost anew.
  virtual Regrouped regroup(Seconds patience);
  // Gives ranks of this world up that show no sign of life: RankLost on all others. False where a job does not outlive that.
  virtual bool lose(std::span<const int>, std::string_view /*why*/) { return false; }

  // This process has come to a job that was under way (tcp_entrance.hpp).
  virtual bool joined() const { return false; }

  // Ends this and every related communicator on all ranks: pending and later calls throw Aborted with the
  // first reason given. Callable from any thread at any time.
  virtual void abort(std::string_view reason) noexcept = 0;
};

inline Regrouped Communicator::regroup(Seconds) {
  throw BackendError("this job does not outlive a rank that is lost");
}

// All ranks of `world` once more: a communicator beside it.
std::unique_ptr<Communicator> everyone(Communicator& world);

// `total` cut into `parts`, the first ones one larger when it does not divide.
std::vector<std::int64_t> even_split(std::int64_t total, int parts);

}  // namespace sextant
