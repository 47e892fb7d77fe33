// The messages of one process to the others of a job over TCP: a connection to each (tcp_meeting.hpp), a thread that takes in
// what comes whether it is awaited or not (so that senders never wait for receivers), and the word that ends a job. Knows
// channels, not communicators.
//
// Where the job outlives lost ranks, a process that is gone without a word ends an epoch: all that is under way. Those that are
// left agree in regroup() on who they are, over the connections that they have (nobody listens any more, so nobody else comes).
// Each tells all others whom it holds for gone; the lowest that is left waits for the word of each and says who goes on. A
// process whose connection was closed is gone for sure; of those that are silent alone there must be fewer than are left.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/communicators/make_communicator.hpp"
#include "runtime/communicators/stalls.hpp"
#include "runtime/communicators/tcp_messages.hpp"
#include "runtime/communicators/tcp_socket.hpp"

namespace sextant {

// A channel belongs to an epoch.
constexpr std::uint64_t kChannelsOfEpoch = std::uint64_t{1} << 48;
inline std::uint64_t epoch_of(std::uint64_t channel) { return channel / kChannelsOfEpoch; }

class TcpProcess {
 public:
  // Meets all others (tcp_meeting.hpp). Throws BackendError when they do not come.
  explicit TcpProcess(const TcpWorld& world);
  ~TcpProcess();
  TcpProcess(const TcpProcess&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  bool joined() const { return joined_; }
  // Of the present epoch, by their ranks in the first one, ascending.
  std::vector<int> members() const;
  std::uint64_t epoch() const;

  // Messages of one channel between two processes arrive in the order they were sent. Throw Aborted once the job has
  // ended, BackendError when the other is gone or sends another size.
  void send(std::uint64_t channel, int peer, const void* data, std::int64_t bytes);
  void recv(std::uint64_t channel, int peer, void* data, std::int64_t bytes);

  // Asks all other members; they are named by their place among these.
  Stalls stalls();
  void answer_with(const std::function<std::string()>& state);
  void abort(std::string_view reason) noexcept;
  // The same for a communicator of `epoch`, unless that has ended: what is met then is a consequence.
  void abort_in(std::uint64_t epoch, std::string_view reason) noexcept;

  // Gives members up that are silent: ends the epoch. False where the job does not outlive that.
  bool lose(const std::vector<int>& ranks, std::string_view why);
  // Begins the next epoch with those that are left; this process's calls in the present one have all returned.
  void regroup(Seconds patience);

 private:
  struct Peer {
    Socket socket;
    std::timed_mutex sending;
    Inflow inflow;                            // of the reading thread
    bool closed = false;                      // gone for sure, where it is gone
    bool gone = false, said_goodbye = false;  // its connection has ended, and how; under mutex_
  };
  void read_all();
  void handle(int peer, Message message);
  void answer_call(int peer);
  void write(int peer, MessageKind kind, std::uint64_t channel, const void* data, std::int64_t bytes);
  void end_with(std::string reason);
  void require_running(std::uint64_t channel) const;  // under mutex_
  bool over(std::uint64_t channel) const { return aborted_ || broken_ || epoch_of(channel) != epoch_; }
  void ended(int peer);  // its connection has: on the reading thread

  // tcp_regroup.cpp; under mutex_ but for the last three
  struct Here {
    std::uint64_t epoch = 0;
    std::vector<int> gone;
  };
  struct Decision {
    int from = 0;
    std::uint64_t epoch = 0;
    std::vector<int> members;
  };
  void break_epoch(std::string why);
  void heard(int peer, const Message&);  // here, members or left_out
  bool is_news(const Here&) const;       // in this epoch
  bool is_left(int member) const;
  std::vector<int> gone() const;
  std::vector<int> not_here() const;  // of those that are left
  Decision decide() const;
  void begin(const Decision&);
  void say(int peer, MessageKind kind, std::uint64_t epoch, const std::vector<int>& ranks);
  void say_to_left(MessageKind kind, std::uint64_t epoch, const std::vector<int>& ranks);
  void drop(int peer);

  std::vector<int> awaited() const;  // for whose messages a recv waits now; under mutex_

  int rank_ = 0;
  bool joined_ = false;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; none for this process
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<std::uint64_t, int>, std::deque<std::vector<std::byte>>> inbox_;
  std::multiset<int> awaited_;
  Answers answers_;
  std::function<std::string()> state_;
  std::atomic<bool> aborted_{false}, closing_{false};
  std::string reason_;
  const bool outlives_;
  std::vector<int> members_;
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<bool> broken_{false};  // the epoch has ended
  std::chrono::steady_clock::time_point broken_since_;
  std::string broken_by_;
  std::set<int> given_up_;  // though their connections stand
  std::map<int, Here> here_;
  std::optional<Decision> decision_;              // of another process
  std::optional<std::chrono::nanoseconds> woke_;  // of the reading thread: when it had last slept
  std::thread reader_;
};

}  // namespace sextant
