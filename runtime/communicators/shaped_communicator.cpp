// A communicator whose calls take the time that a ring over emulated links would. Per collective over P ranks
// and V bytes (ring algorithm; Thakur, Rabenseifner, Gropp 2005, section 4):
//   all_gather, reduce_scatter   (P-1) hops of latency, (P-1)/P * V bytes through every link
//   all_reduce                   twice that
//   broadcast (pipelined)        (P-1) hops, V bytes
// A group on several nodes pays the network's latency on each hop; its ring crosses every node's NIC once, so
// the group's ranks on one node move those bytes together. Transfers under way share links fairly
// (SharedLink). Ignores trees, in-network reduction and the two directions of a link competing for host
// memory.
#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "core/base/error.hpp"
#include "runtime/communicators/collective_args.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/shared_link.hpp"

namespace sextant {

// Links out of every rank and every node; receivers pay on the links in.
class Fabric {
 public:
  Fabric(const LinkShape& shape_, int world_ranks, int ranks_in_process, const EmulatedSpeeds* speeds_)
      : shape(shape_), speeds(speeds_) {
    SEXTANT_CHECK(shape.ranks_per_node > 0 && ranks_in_process > 0, "nodes and processes hold ranks");
    int nodes = 0;
    for (int r = 0; r < world_ranks; ++r) nodes = std::max(nodes, node_of(r) + 1);
    const double share =
        std::min(1.0, static_cast<double>(ranks_in_process) / std::min(shape.ranks_per_node, world_ranks));
    for (int direction = 0; direction < 2; ++direction) {
      for (int r = 0; r < world_ranks; ++r)
        rank_links[direction].push_back(std::make_unique<SharedLink>(shape.node_bandwidth));
      for (int n = 0; n < nodes; ++n)
        nics[direction].push_back(std::make_unique<SharedLink>(shape.network_bandwidth * share));
    }
  }
  int node_of(int rank) const {
    return shape.node_of.empty() ? rank / shape.ranks_per_node
                                 : shape.node_of[static_cast<std::size_t>(rank)];
  }

  const LinkShape shape;
  const EmulatedSpeeds* const speeds;
  std::vector<std::unique_ptr<SharedLink>> rank_links[2], nics[2];
  std::atomic<bool> aborted{false};  // no more waiting
};

namespace {

using Clock = std::chrono::steady_clock;
enum Direction : std::uint8_t { out_of, into };

class ShapedCommunicator final : public Communicator {
 public:
  // `world_rank_of[r]`: where rank r of this group lives.
  ShapedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Fabric> fabric,
                     std::vector<int> world_rank_of)
      : inner_(std::move(inner)), fabric_(std::move(fabric)), world_rank_of_(std::move(world_rank_of)) {
    std::set<int> nodes;
    for (const int r : world_rank_of_) {
      nodes.insert(fabric_->node_of(r));
      neighbours_ += fabric_->node_of(r) == fabric_->node_of(self());
    }
    several_nodes_ = nodes.size() > 1;
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  void all_reduce(const void* in, void* out, std::int64_t count, Dtype dtype, Reduction reduction,
                  NativeStream stream) override {
    check_all_reduce(in, out, count, dtype);
    ring(2 * (size() - 1), around(2 * count * size_bytes(dtype)), stream,
         [&] { inner_->all_reduce(in, out, count, dtype, reduction, stream); });
  }
  void reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, Dtype dtype,
                      Reduction reduction, NativeStream stream) override {
    check_reduce_scatter(in, out, counts, dtype, rank(), size());
    ring(size() - 1, around(size() * std::ranges::max(counts) * size_bytes(dtype)), stream,
         [&] { inner_->reduce_scatter(in, out, counts, dtype, reduction, stream); });
  }
  void all_gather(const void* in, void* out, std::span<const std::int64_t> bytes,
                  NativeStream stream) override {
    check_all_gather(in, out, bytes, rank(), size());
    ring(size() - 1, around(size() * std::ranges::max(bytes)), stream,
         [&] { inner_->all_gather(in, out, bytes, stream); });
  }
  void broadcast(void* data, std::int64_t bytes, int root, NativeStream stream) override {
    ring(size() - 1, Bytes(bytes), stream, [&] { inner_->broadcast(data, bytes, root, stream); });
  }
  void barrier(NativeStream stream) override {
    ring(size() - 1, Bytes(0), stream, [&] { inner_->barrier(stream); });
  }

  // The token makes both ends start together, as a transfer that holds a lane of either does.
  void send(const void* data, std::int64_t bytes, int peer, NativeStream stream) override {
    check_peer(peer, rank(), size());
    inner_->recv(nullptr, 0, peer, stream);
    transfer(out_of, bytes, peer, [&] { inner_->send(data, bytes, peer, stream); });
  }
  void recv(void* data, std::int64_t bytes, int peer, NativeStream stream) override {
    check_peer(peer, rank(), size());
    inner_->send(nullptr, 0, peer, stream);
    transfer(into, bytes, peer, [&] { inner_->recv(data, bytes, peer, stream); });
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    std::vector<int> world_ranks;
    for (const int r : ranks) world_ranks.push_back(world_rank_of_.at(static_cast<std::size_t>(r)));
    return std::make_unique<ShapedCommunicator>(inner_->group(ranks), fabric_, std::move(world_ranks));
  }

  Stalls stalls() override { return inner_->stalls(); }
  void answer_with(const std::function<std::string()>& state) override { inner_->answer_with(state); }
  bool lose(std::span<const int> ranks, std::string_view why) override { return inner_->lose(ranks, why); }

  void abort(std::string_view reason) noexcept override {
    fabric_->aborted = true;
    inner_->abort(reason);
  }

 private:
  int self() const { return world_rank_of_[static_cast<std::size_t>(rank())]; }

  // Each slice travels to all ranks but one, one step after the other: of unequal ones the largest is the pace of each.
  Bytes around(std::int64_t bytes) const { return Bytes(bytes * (size() - 1) / size()); }

  enum class Link : std::uint8_t { of_rank, network };
  // A link of half the speed takes as long as one with twice the bytes.
  Bytes slowed(Bytes bytes, Link link) const {
    if (!fabric_->speeds) return bytes;
    const auto& speed = link == Link::network ? fabric_->speeds->network : fabric_->speeds->node_link;
    return Bytes(static_cast<std::int64_t>(static_cast<double>(bytes.v) /
                                           speed[static_cast<std::size_t>(self())].load()));
  }

  template <class Collective>
  void ring(int hops, Bytes bytes, NativeStream stream, Collective collective) {
    if (size() == 1) return collective();
    inner_->barrier(stream);  // the clock starts when the last rank has come
    SharedLink::Transfer node(rank_link(out_of), slowed(bytes, Link::of_rank));
    SharedLink::Transfer network(nic(out_of), several_nodes_ ? slowed(bytes, Link::network) : Bytes(0),
                                 1.0 / neighbours_);
    collective();
    const auto& shape = fabric_->shape;
    const auto through = std::max(finish(node), finish(network));
    sleep_until(through, (several_nodes_ ? shape.network_latency : shape.node_latency) * hops);
    if (several_nodes_) inner_->barrier(stream);  // a busy NIC holds the whole ring back
  }

  template <class Collective>
  void transfer(Direction direction, std::int64_t bytes, int peer, Collective collective) {
    const bool crosses =
        fabric_->node_of(world_rank_of_[static_cast<std::size_t>(peer)]) != fabric_->node_of(self());
    SharedLink::Transfer link(crosses ? nic(direction) : rank_link(direction),
                              slowed(Bytes(bytes), crosses ? Link::network : Link::of_rank));
    collective();
    sleep_until(finish(link), crosses ? fabric_->shape.network_latency : fabric_->shape.node_latency);
  }

  SharedLink& rank_link(Direction d) { return *fabric_->rank_links[d][static_cast<std::size_t>(self())]; }
  SharedLink& nic(Direction d) {
    return *fabric_->nics[d][static_cast<std::size_t>(fabric_->node_of(self()))];
  }
  Clock::time_point finish(SharedLink::Transfer& transfer) {
    return transfer.finish([this] { return fabric_->aborted.load(); });
  }
  void sleep_until(Clock::time_point through, Seconds latency) const {
    if (latency.v > 0 && !fabric_->aborted)
      std::this_thread::sleep_until(through + std::chrono::duration<double>(latency.v));
  }

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<Fabric> fabric_;
  std::vector<int> world_rank_of_;
  int neighbours_ = 0;  // ranks of the group on this node, with this one
  bool several_nodes_ = false;
};

}  // namespace

std::shared_ptr<Fabric> make_fabric(const LinkShape& shape, int world_ranks, int ranks_in_process,
                                    const EmulatedSpeeds* speeds) {
  return std::make_shared<Fabric>(shape, world_ranks, ranks_in_process, speeds);
}

std::unique_ptr<Communicator> make_shaped(std::unique_ptr<Communicator> world,
                                          std::shared_ptr<Fabric> fabric) {
  std::vector<int> ranks;
  for (int r = 0; r < world->size(); ++r) ranks.push_back(r);
  return std::make_unique<ShapedCommunicator>(std::move(world), std::move(fabric), std::move(ranks));
}

}  // namespace sextant
