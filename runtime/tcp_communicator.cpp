// Ranks as processes that any launcher has started: messages over TCP (runtime/tcp_process.hpp), sums in one order. For
// jobs without MPI: of torchrun, of srun without PMI, of a shell. What moves many bytes should have NCCL above it.
#include <cstring>
#include <map>

#include "core/error.hpp"
#include "runtime/backends.hpp"
#include "runtime/collective_args.hpp"
#include "runtime/ordered_sum.hpp"
#include "runtime/tcp_process.hpp"

namespace sextant {
namespace {

// FNV-1a.
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (value >> 8 * byte & 0xff)) * 1099511628211u;
  return hash;
}
constexpr std::uint64_t kWorldChannel = 14695981039346656037u;

class TcpCommunicator final : public Communicator {
 public:
  // `members`: ranks of the world, this one's place among them is `rank`.
  TcpCommunicator(std::shared_ptr<TcpProcess> process, std::uint64_t channel, std::vector<int> members,
                  int rank)
      : process_(std::move(process)), channel_(channel), members_(std::move(members)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  void all_reduce(const void* in, void* out, std::int64_t count, Dtype dtype, Reduction reduction,
                  NativeStream stream) override {
    check_all_reduce(in, out, count, dtype);
    auto slices = even_split(count, size());
    const auto element = size_bytes(dtype);
    std::byte* mine = static_cast<std::byte*>(out) + offset_of(slices, rank_) * element;
    reduce_scatter(in, mine, slices, dtype, reduction, stream);
    for (auto& n : slices) n *= element;
    all_gather(mine, out, slices, stream);
  }

  // All-to-all, then the sum of what came, in the order of the ranks.
  void reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, Dtype dtype,
                      Reduction reduction, NativeStream) override {
    check_reduce_scatter(in, out, counts, dtype, rank_, size());
    const auto element = size_bytes(dtype);
    const auto count = counts[static_cast<std::size_t>(rank_)];
    const auto* from = static_cast<const std::byte*>(in);
    for_each_peer([&](int peer) {
      send_to(peer, from + offset_of(counts, peer) * element,
              counts[static_cast<std::size_t>(peer)] * element);
    });
    received_.resize(static_cast<std::size_t>(count * element * size()));
    std::vector<const void*> parts(members_.size());
    parts[static_cast<std::size_t>(rank_)] = from + offset_of(counts, rank_) * element;
    for_each_peer([&](int peer) {
      auto* slot = received_.data() + peer * count * element;
      parts[static_cast<std::size_t>(peer)] = slot;
      recv_from(peer, slot, count * element);
    });
    reduce_in_order(parts, out, count, dtype, reduction);
  }

  void all_gather(const void* in, void* out, std::span<const std::int64_t> bytes, NativeStream) override {
    check_all_gather(in, out, bytes, rank_, size());
    auto* to = static_cast<std::byte*>(out);
    const auto mine = bytes[static_cast<std::size_t>(rank_)];
    for_each_peer([&](int peer) { send_to(peer, in, mine); });
    std::byte* own = to + offset_of(bytes, rank_);
    if (own != in && mine > 0) std::memcpy(own, in, static_cast<std::size_t>(mine));
    for_each_peer([&](int peer) {
      recv_from(peer, to + offset_of(bytes, peer), bytes[static_cast<std::size_t>(peer)]);
    });
  }

  void broadcast(void* data, std::int64_t bytes, int root, NativeStream) override {
    SEXTANT_CHECK(root >= 0 && root < size(), "the root is a rank of the group");
    if (rank_ == root)
      for_each_peer([&](int peer) { send_to(peer, data, bytes); });
    else
      recv_from(root, data, bytes);
  }

  void send(const void* data, std::int64_t bytes, int peer, NativeStream) override {
    check_peer(peer, rank_, size());
    send_to(peer, data, bytes);
  }
  void recv(void* data, std::int64_t bytes, int peer, NativeStream) override {
    check_peer(peer, rank_, size());
    recv_from(peer, data, bytes);
  }

  // Dissemination: in round k everybody tells the rank 2^k further on (Hensgen, Finkel, Manber 1988).
  void barrier(NativeStream) override {
    for (int distance = 1; distance < size(); distance *= 2) {
      send_to((rank_ + distance) % size(), nullptr, 0);
      recv_from((rank_ + size() - distance) % size(), nullptr, 0);
    }
  }

  // All members give it the same channel without a word: it follows from this one's, the members, and how often these
  // have made a group of this one.
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    check_members(ranks, rank_, size());
    std::vector<int> members;
    int own = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      members.push_back(members_[static_cast<std::size_t>(ranks[i])]);
      if (ranks[i] == rank_) own = static_cast<int>(i);
    }
    std::uint64_t channel = mix(channel_, static_cast<std::uint64_t>(made_[members]++));
    for (const int r : members) channel = mix(channel, static_cast<std::uint64_t>(r));
    return std::make_unique<TcpCommunicator>(process_, channel, std::move(members), own);
  }

  HoldUps hold_ups() override { return process_->hold_ups(); }
  void abort(std::string_view reason) noexcept override { process_->abort(reason); }

 private:
  void send_to(int peer, const void* data, std::int64_t bytes) {
    process_->send(channel_, members_[static_cast<std::size_t>(peer)], data, bytes);
  }
  void recv_from(int peer, void* data, std::int64_t bytes) {
    process_->recv(channel_, members_[static_cast<std::size_t>(peer)], data, bytes);
  }
  // Starting with the next rank, so that not all send to rank 0 first.
  template <class Visit>
  void for_each_peer(Visit visit) {
    for (int step = 1; step < size(); ++step) visit((rank_ + step) % size());
  }

  std::shared_ptr<TcpProcess> process_;
  std::uint64_t channel_;
  std::vector<int> members_;
  int rank_;
  std::map<std::vector<int>, int> made_;
  std::vector<std::byte> received_;
};

}  // namespace

std::unique_ptr<Communicator> make_tcp_world(const TcpWorld& world) {
  SEXTANT_CHECK(world.ranks > 0 && world.rank >= 0 && world.rank < world.ranks, "a rank of the world");
  std::vector<int> all(static_cast<std::size_t>(world.ranks));
  for (int r = 0; r < world.ranks; ++r) all[static_cast<std::size_t>(r)] = r;
  return std::make_unique<TcpCommunicator>(std::make_shared<TcpProcess>(world), kWorldChannel, std::move(all),
                                           world.rank);
}

}  // namespace sextant
