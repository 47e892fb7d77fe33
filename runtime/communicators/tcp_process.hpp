// The messages of one process to the others of a job over TCP: a connection to each (tcp_meeting.hpp), a thread that takes in what comes whether it is awaited or not (so that senders never wait for receivers), and the word that ends
// a job. Knows channels, not communicators.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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

class TcpProcess {
 public:
  // Meets all others (tcp_meeting.hpp). Throws BackendError when they do not come.
  explicit TcpProcess(const TcpWorld& world);
  ~TcpProcess();
  TcpProcess(const TcpProcess&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Messages of one channel between two processes arrive in the order they were sent. Throw Aborted once the job has
  // ended, BackendError when the other is gone or sends another size.
  void send(std::uint64_t channel, int peer, const void* data, std::int64_t bytes);
  void recv(std::uint64_t channel, int peer, void* data, std::int64_t bytes);

  HoldUps stalls();  // asks all others
  void answer_with(const std::function<std::string()>& state);
  void abort(std::string_view reason) noexcept;

 private:
  struct Peer {
    Socket socket;
    std::timed_mutex sending;
    Inflow inflow;                            // of the reading thread
    bool gone = false, said_goodbye = false;  // its connection has ended, and how; under mutex_
  };
  void read_all();
  void handle(int peer, Message message);
  void answer_call(int peer);
  void write(int peer, MessageKind kind, std::uint64_t channel, const void* data, std::int64_t bytes);
  void end_with(std::string reason);
  void require_running() const;      // under mutex_
  std::vector<int> awaited() const;  // for whose messages a recv waits now; under mutex_

  int rank_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; none for this process
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<std::uint64_t, int>, std::deque<std::vector<std::byte>>> inbox_;
  std::multiset<int> awaited_;
  Answers answers_;
  std::function<std::string()> state_;
  std::atomic<bool> aborted_{false}, closing_{false};
  std::string reason_;
  std::thread reader_;
};

}  // namespace sextant
