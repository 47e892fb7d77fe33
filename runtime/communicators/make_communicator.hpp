// Every kind of communicator there is, and how to make one: the only header that names them all.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/units.hpp"
#include "runtime/communicators/communicator.hpp"
#include "runtime/devices/emulated_speeds.hpp"

namespace sextant {

// Ranks are threads of this process. The reference for collective semantics: a call whose kind or size
// differs between ranks is a BackendError on all of them.
std::vector<std::unique_ptr<Communicator>> make_local_world(int ranks);

// Runs body(communicator) on a thread per rank of `world` and waits for all. An exception on one rank aborts
// the others and is rethrown; what the abort caused elsewhere is dropped. The
// world outlives whoever else may abort it, such as a watchdog.
using RankBody = std::function<void(Communicator&)>;
void run_ranks(std::span<const std::unique_ptr<Communicator>> world, const RankBody& body);
inline void run_local_ranks(int ranks, const RankBody& body) { run_ranks(make_local_world(ranks), body); }

// Ranks are MPI processes. Initialises MPI; one call per process. Throws BackendError when built without MPI.
bool mpi_available();
std::unique_ptr<Communicator> make_mpi_world();

// Ranks are processes that something else has started and told who they are. They meet at the address of rank 0 and then
// connect each to each; whoever does not prove that it knows the secret is dropped. Throws BackendError when some do not come
// within `patience`, or this process is of another job than rank 0.
struct TcpWorld {
  int rank = 0, ranks = 1;
  std::string address;        // of rank 0's machine: a name, IPv4 or IPv6
  int port = 0;               // on which rank 0 listens while they meet
  std::string job;            // tells jobs of one user apart; the first 63 characters count
  std::string secret;         // never sent
  std::string secret_source;  // where the secret is from, for messages
  Seconds patience{600};
  const std::atomic<bool>* stop = nullptr;  // set: they need not go on waiting for each other
  // One that is gone without a word ends what is under way on all others (RankLost), not the job; the same on all ranks.
  bool outlives_ranks = false;
  int generation = 0;          // how often the job has met before: above 0 it is under way (tcp_entrance.hpp)
  std::uint32_t settings = 0;  // of what is trained and how; one that comes later must have the same
  // Who is waited for: while they meet, and by one that waits to be let in. May be empty.
  std::function<void(const std::string&)> tell = {};
  Seconds told_after{10};  // of silence; then after twice as long each time
};
// How long those that are there and those that are let in look for each other.
inline constexpr Seconds kToBeAdmitted{10};
std::unique_ptr<Communicator> make_tcp_world(const TcpWorld&);

// All ranks of a world are threads of this process and share one GPU: the collectives of their lanes, over the host
// communicators on which they meet. How several ranks run where there is one GPU; NCCL refuses that.
void share_cuda_device(std::span<std::unique_ptr<Communicator>> world, int ordinal);

// GPUs of several processes (of MPI, or of a TcpWorld): NCCL under the collectives of lanes, over a host communicator that starts it and serves
// calls without a stream. Each rank has GPU `ordinal` of its machine for itself. Throws BackendError with the reason.
std::unique_ptr<Communicator> connect_nccl(std::unique_ptr<Communicator> host, int ordinal);
std::string nccl_version(std::string& why_none);  // "NCCL 2.28.9"; empty with the reason

// Emulated links between ranks; ranks of one node share its NIC.
struct LinkShape {
  int ranks_per_node = 8;
  BytesPerSecond node_bandwidth;  // of one rank inside the node, per direction; 0 = infinite
  Seconds node_latency;
  BytesPerSecond network_bandwidth;  // of one node, all its ranks together, per direction; 0 = infinite
  Seconds network_latency;
  std::vector<int> node_of = {};  // by world rank; empty: ranks_per_node after ranks_per_node
};
// The links of one process; ranks that are threads of it share one fabric. Ranks of the same node that live
// in other processes are taken to be always active: each process gets its ranks' even share of the NIC. With `speeds`,
// which outlive it, links are as slow as these say when an exchange begins.
class Fabric;
std::shared_ptr<Fabric> make_fabric(const LinkShape&, int world_ranks, int ranks_in_process,
                                    const EmulatedSpeeds* speeds = nullptr);

// Wraps a world communicator: same results, but a call takes at least latency + bytes / bandwidth of a ring
// over the emulated links (see shaped_communicator.cpp) and burns no CPU while it waits.
std::unique_ptr<Communicator> make_shaped(std::unique_ptr<Communicator> world, std::shared_ptr<Fabric>);

}  // namespace sextant
