// Ranks as processes that any launcher has started: messages over TCP (runtime/communicators/tcp_process.hpp), sums in one order. For
// jobs without MPI: of torchrun, of srun without PMI, of a shell. What moves many bytes should have NCCL above it.
#include <algorithm>
#include <map>
#include <utility>

#include "core/base/error.hpp"
#include "runtime/communicators/collective_args.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/communicators/message_communicator.hpp"
#include "runtime/communicators/tcp_process.hpp"

namespace sextant {
namespace {

// FNV-1a.
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (value >> 8 * byte & 0xff)) * 1099511628211u;
  return hash;
}
constexpr std::uint64_t kWorldChannel = 14695981039346656037u;
std::uint64_t in_epoch(std::uint64_t epoch, std::uint64_t hash) {
  return epoch * kChannelsOfEpoch + hash % kChannelsOfEpoch;
}

// Messages of one channel. Senders never wait for receivers, so that what is received can wait until all is sent.
class TcpCollective {
 public:
  TcpCollective(TcpProcess& process, std::uint64_t channel, std::span<const int> members)
      : process_(process), channel_(channel), members_(members) {}
  void send(const void* data, std::int64_t bytes, int peer) {
    process_.send(channel_, members_[static_cast<std::size_t>(peer)], data, bytes);
  }
  void recv(void* data, std::int64_t bytes, int peer) { awaited_.push_back({data, bytes, peer}); }
  void finish() {
    for (const auto& [data, bytes, peer] : awaited_)
      process_.recv(channel_, members_[static_cast<std::size_t>(peer)], data, bytes);
  }

 private:
  struct Awaited {
    void* data;
    std::int64_t bytes;
    int peer;
  };
  TcpProcess& process_;
  std::uint64_t channel_;
  std::span<const int> members_;
  std::vector<Awaited> awaited_;
};

class TcpCommunicator final : public MessageCommunicator<TcpCommunicator> {
 public:
  // `members`: ranks of the world, this one's place among them is `rank`.
  TcpCommunicator(std::shared_ptr<TcpProcess> process, std::uint64_t channel, std::vector<int> members,
                  int rank)
      : process_(std::move(process)), channel_(channel), members_(std::move(members)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  TcpCollective collective() { return {*process_, channel_, members_}; }

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
    return std::make_unique<TcpCommunicator>(process_, in_epoch(epoch_of(channel_), channel),
                                             std::move(members), own);
  }

  Regrouped regroup(Seconds patience) override {
    process_->regroup(patience);
    Regrouped left;
    std::vector<int> members = process_->members();
    const auto place = [](const std::vector<int>& ranks, int rank) {
      return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
    };
    for (const int member : members) left.before.push_back(place(members_, member));
    const int own = place(members, process_->rank());
    left.world = std::make_unique<TcpCommunicator>(process_, in_epoch(process_->epoch(), kWorldChannel),
                                                   std::move(members), own);
    return left;
  }
  bool lose(std::span<const int> ranks, std::string_view why) override {
    std::vector<int> of_process;
    for (const int rank : ranks) of_process.push_back(members_[static_cast<std::size_t>(rank)]);
    return process_->lose(of_process, why);
  }

  bool joined() const override { return process_->joined(); }
  Stalls stalls() override { return process_->stalls(); }
  void answer_with(const std::function<std::string()>& state) override { process_->answer_with(state); }
  void abort(std::string_view reason) noexcept override { process_->abort_in(epoch_of(channel_), reason); }

 private:
  std::shared_ptr<TcpProcess> process_;
  std::uint64_t channel_;
  std::vector<int> members_;
  int rank_;
  std::map<std::vector<int>, int> made_;
};

}  // namespace

std::unique_ptr<Communicator> make_tcp_world(const TcpWorld& world) {
  SEXTANT_CHECK(world.ranks > 0 && world.rank >= 0 && world.rank < world.ranks, "a rank of the world");
  auto process = std::make_shared<TcpProcess>(world);
  const int rank = process->rank();
  std::vector<int> all = process->members();
  return std::make_unique<TcpCommunicator>(std::move(process), in_epoch(0, kWorldChannel), std::move(all),
                                           rank);
}

}  // namespace sextant
