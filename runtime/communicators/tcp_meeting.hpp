// How processes that something else has started find each other: all but rank 0 come to rank 0's address, rank 0 tells each
// where the others listen, and each connects to those of lower ranks. One that comes to a job which is under way waits there for
// a place in its next meeting (tcp_entrance.hpp).
#pragma once

#include <vector>

#include "runtime/communicators/make_communicator.hpp"
#include "runtime/communicators/tcp_socket.hpp"

namespace sextant {

struct Met {
  int rank = 0;
  bool joined = false;          // it was under way, and `rank` is the place that it has given
  std::vector<Socket> sockets;  // a connection to each other rank, by rank; none at this one's
};
// Throws BackendError when they do not come within the patience
// of `world`, when this process has another secret, or is of another job than rank 0; strangers change nothing.
Met meet(const TcpWorld& world);

}  // namespace sextant
