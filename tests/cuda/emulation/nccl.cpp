// NCCL as its manual describes it, for communicators that do not block: ranks are threads of this process with a GPU each.
// A call is under way until it has been asked about often enough, and enqueued only then; a collective is carried out
// when the streams of all ranks have come to it.
#include "tests/cuda/emulation/nccl.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <nccl.h>

#include "tests/cuda/emulation/machine.hpp"

namespace {

using emulation::chance;
using emulation::machine;
using emulation::Mark;

enum class Kind { all_reduce, reduce_scatter, reduce, all_gather, broadcast, transfer };

struct Call {
  Kind kind;
  const void* in;
  void* out;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;  // of a transfer: the sender
};

// What ranks bring to one collective, and the marks that their streams wait for.
struct Meeting {
  std::map<int, Call> calls;
  std::map<int, std::shared_ptr<Mark>> marks;
};
using Place =
    std::tuple<int, int, std::uint64_t>;  // of a transfer: from, to, number; otherwise -1, -1, number

struct Clique {
  int ranks = 0;
  std::set<int> joined, devices;
  std::map<Place, Meeting> meetings;
};

std::mutex mutex;  // of everything below and of what is behind an ncclComm_t
std::map<std::string, std::shared_ptr<Clique>> cliques;
std::vector<ncclComm_t> comms;
bool broken = false;

struct Grouped {
  ncclComm_t comm;
  cudaStream_t stream;
  Call call;
  Place place;
};
thread_local int depth = 0;
thread_local std::vector<Grouped> group;

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return 8;
    case ncclFloat32:
      return 4;
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}
double load(const void* data, ncclDataType_t type, std::size_t i) {
  if (type == ncclFloat64) return static_cast<const double*>(data)[i];
  if (type == ncclFloat32) return static_cast<const float*>(data)[i];
  return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(data)[i]} << 16);
}
void store(void* data, ncclDataType_t type, std::size_t i, double x) {
  if (type == ncclFloat64) {
    static_cast<double*>(data)[i] = x;
  } else if (type == ncclFloat32) {
    static_cast<float*>(data)[i] = static_cast<float>(x);
  } else {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
    static_cast<std::uint16_t*>(data)[i] =
        static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

// Elements [first, first + count) of all ranks' vectors, reduced in the order of ranks.
std::vector<double> reduced(const Meeting& m, std::size_t first, std::size_t count) {
  std::vector<double> sum;
  for (const auto& [rank, call] : m.calls)
    for (std::size_t i = 0; i < count; ++i) {
      const double x = load(call.in, call.type, first + i);
      if (sum.size() < count)
        sum.push_back(x);
      else
        sum[i] = call.op == ncclMax ? std::max(sum[i], x) : sum[i] + x;
    }
  return sum;
}

void carry_out(Meeting& m) {
  const Call& first = m.calls.begin()->second;
  for (const auto& [rank, call] : m.calls)
    if (call.kind != first.kind || call.count != first.count || call.type != first.type ||
        call.op != first.op || call.root != first.root)
      throw emulation::Fault("ranks make different calls of NCCL");
  const std::size_t bytes = first.count * bytes_of(first.type);
  const auto write = [](const Call& call, const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) store(call.out, call.type, i, values[i]);
  };
  switch (first.kind) {
    case Kind::all_reduce: {
      const auto sum = reduced(m, 0, first.count);
      for (const auto& [rank, call] : m.calls) write(call, sum);
      break;
    }
    case Kind::reduce:
      write(m.calls.at(first.root), reduced(m, 0, first.count));
      break;
    case Kind::reduce_scatter: {
      std::vector<std::vector<double>> sums;
      for (std::size_t r = 0; r < m.calls.size(); ++r)
        sums.push_back(reduced(m, r * first.count, first.count));
      for (const auto& [rank, call] : m.calls) write(call, sums[static_cast<std::size_t>(rank)]);
      break;
    }
    case Kind::all_gather: {
      std::vector<char> all(bytes * m.calls.size());
      for (const auto& [rank, call] : m.calls)
        std::memcpy(all.data() + static_cast<std::size_t>(rank) * bytes, call.in, bytes);
      for (const auto& [rank, call] : m.calls) std::memcpy(call.out, all.data(), all.size());
      break;
    }
    case Kind::broadcast:
    case Kind::transfer: {
      const std::vector<char> data(static_cast<const char*>(m.calls.at(first.root).in),
                                   static_cast<const char*>(m.calls.at(first.root).in) + bytes);
      for (const auto& [rank, call] : m.calls)
        if (call.out) std::memcpy(call.out, data.data(), bytes);
      break;
    }
  }
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0, polls = 0;
  std::uint64_t calls = 0;
  std::map<int, std::uint64_t> sent = {}, received = {};
  std::vector<Grouped> pending = {};
};

namespace {

bool complete(const Clique& c) { return static_cast<int>(c.joined.size()) == c.ranks; }

// Under the mutex: the streams of a rank's calls come to their meetings, and wait there for the others.
void enqueue(std::vector<Grouped> calls) {
  for (const Grouped& g : calls) {
    g.comm->clique->meetings[g.place].marks[g.comm->rank] = std::make_shared<Mark>();
    const int members = g.call.kind == Kind::transfer ? 2 : g.comm->clique->ranks;
    const auto arrive = [clique = g.comm->clique, rank = g.comm->rank, place = g.place, call = g.call,
                         members] {
      std::map<int, std::shared_ptr<Mark>> marks;
      {
        const std::lock_guard lock(mutex);
        const auto meeting = clique->meetings.find(place);
        if (meeting == clique->meetings.end()) return;  // aborted
        meeting->second.calls.emplace(rank, call);
        if (static_cast<int>(meeting->second.calls.size()) < members) return;
        marks = meeting->second.marks;
        carry_out(meeting->second);
        clique->meetings.erase(meeting);
      }
      for (const auto& [member, mark] : marks) machine().reach(mark);
    };
    machine().push(g.stream, {.work = arrive, .activity = machine().activity(emulation::Activity::kernel)});
  }
  for (const Grouped& g : calls)
    machine().push(g.stream, {.waits_for = g.comm->clique->meetings[g.place].marks[g.comm->rank]});
}

// Under the mutex: calls that belong together are taken, now or when they have been asked about.
ncclResult_t take(std::vector<Grouped> calls) {
  if (calls.empty()) return ncclSuccess;
  ncclComm& comm = *calls.front().comm;
  comm.pending = std::move(calls);
  comm.polls = static_cast<int>(chance() % 4);
  if (comm.polls > 0) return ncclInProgress;
  enqueue(std::exchange(comm.pending, {}));
  return ncclSuccess;
}

ncclResult_t refuse(const std::string& why) {
  machine().fail(cudaErrorUnknown, "NCCL: " + why);
  return ncclInvalidUsage;
}

ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, const Call& call, int peer = -1) {
  if (emulation::usable(stream, "a call of NCCL") != cudaSuccess) return ncclUnhandledCudaError;
  const std::lock_guard lock(mutex);
  if (std::ranges::find(comms, comm) == comms.end()) return refuse("a communicator that is gone");
  if (comm->device != emulation::device_of(stream)) return refuse("the stream of another GPU");
  if (!complete(*comm->clique) || !comm->pending.empty())
    return refuse("a call before the last one was settled");
  Place place{-1, -1, 0};
  if (call.kind != Kind::transfer)
    place = {-1, -1, comm->calls++};
  else if (call.root == comm->rank)
    place = {comm->rank, peer, comm->sent[peer]++};
  else
    place = {peer, comm->rank, comm->received[peer]++};
  if (depth > 0) {
    group.push_back({comm, stream, call, place});
    return ncclSuccess;
  }
  return take({{comm, stream, call, place}});
}

}  // namespace

void emulation::break_links() {
  const std::lock_guard lock(mutex);
  broken = true;
}

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "an error of NCCL";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  const std::lock_guard lock(mutex);
  *id = {};
  std::strcpy(id->internal, std::to_string(++made).c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t* c) {
  if (emulation::chosen("ncclCommInitRankConfig") != cudaSuccess) return ncclUnhandledCudaError;
  if (c->size != sizeof *c || c->blocking != 0) return refuse("a communicator that blocks");
  const std::lock_guard lock(mutex);
  auto& clique = cliques[id.internal];
  if (!clique) clique = std::make_shared<Clique>();
  clique->ranks = ranks;
  if (!clique->devices.insert(emulation::device_of_thread).second) return refuse("duplicate GPU detected");
  clique->joined.insert(rank);
  *made =
      comms.emplace_back(new ncclComm{.clique = clique, .rank = rank, .device = emulation::device_of_thread});
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(mutex);
  if (std::ranges::find(comms, comm) == comms.end()) return refuse("a communicator that is gone");
  *state = ncclSuccess;
  if (broken)
    *state = ncclRemoteError;
  else if (!complete(*comm->clique) || (!comm->pending.empty() && --comm->polls > 0))
    *state = ncclInProgress;
  else
    enqueue(std::exchange(comm->pending, {}));
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  if (std::erase(comms, comm) == 0) return refuse("a communicator that is gone");
  delete comm;
  return ncclSuccess;
}
// Its own streams go on; those of its peers wait for what will not come.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  std::vector<std::shared_ptr<Mark>> marks;
  {
    const std::lock_guard lock(mutex);
    for (auto& [place, meeting] : comm->clique->meetings)
      if (const auto own = meeting.marks.find(comm->rank); own != meeting.marks.end())
        marks.push_back(own->second);
  }
  for (const auto& mark : marks) machine().reach(mark);
  return ncclCommDestroy(comm);
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  const std::lock_guard lock(mutex);
  return take(std::exchange(group, {}));
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t s) {
  return submit(comm, s, {Kind::all_reduce, in, out, n, type, op, 0});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t s) {
  return submit(comm, s, {Kind::reduce_scatter, in, out, n, type, op, 0});
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t n, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t s) {
  return submit(comm, s, {Kind::reduce, in, out, n, type, op, root});
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t s) {
  return submit(comm, s, {Kind::all_gather, in, out, n, type, ncclSum, 0});
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t n, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t s) {
  return submit(comm, s, {Kind::broadcast, in, out, n, type, ncclSum, root});
}
ncclResult_t ncclSend(const void* in, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t s) {
  return submit(comm, s, {Kind::transfer, in, nullptr, n, type, ncclSum, comm->rank}, peer);
}
ncclResult_t ncclRecv(void* out, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t s) {
  return submit(comm, s, {Kind::transfer, nullptr, out, n, type, ncclSum, peer}, peer);
}

}  // extern "C"
