// Where processes come to a job that is under way (TcpWorld::outlives_ranks): the first of its ranks listens at the job's address,
// and who proves the secret waits there until the job has a use for it. Then all that are there and those that are let in meet anew
// (tcp_meeting.hpp), as the next generation of the job; those that are there keep their connections until that has gone well. A rank 0
// that was started again, and waits at that address for a job to begin, gives way to the one that is under way, and comes to it.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <thread>

#include "runtime/communicators/tcp_handshake.hpp"

namespace sextant {

class TcpEntrance {
 public:
  // `here`: the ranks as which those that are there have come; `most`: how many the machine has place for. Throws BackendError
  // when the port is taken, or the address is another machine's.
  TcpEntrance(const TcpWorld& job, std::set<int> here, int most);
  ~TcpEntrance();  // the job is over for those that wait
  void set_here(std::set<int>);
  TcpEntrance(const TcpEntrance&) = delete;

  // The ranks as which those have come that wait.
  std::set<int> waiting();

  // Closes: those named have these ranks in the next meeting, all others are to come again.
  void invite(const std::map<int, int>& rank_of, int ranks, int generation);

 private:
  void receive(std::vector<Socket> listeners);
  Admission judge(const Claim&);
  void forget_gone();  // under mutex_
  void close();

  Member own_;
  const int most_;
  std::mutex mutex_;
  std::set<int> here_;
  std::map<int, Socket> guests_;
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace sextant
