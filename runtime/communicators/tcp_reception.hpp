// Where processes of a job are let in: connections are accepted, whoever proves the secret is handed on, all others are
// dropped. No connection makes another wait, and strangers hold at most 128 descriptors for at most 10 s.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/communicators/tcp_handshake.hpp"

namespace sextant {

// At the addresses of a job that lead to the others. Everywhere where these are not known: the name of this machine that its own
// hosts file gives to the loopback (127.0.1.1), or an address that another machine passes on. Throws BackendError when the port
// is taken.
std::vector<Socket> listeners_of_job(const std::string& address, int port);

class Reception {
 public:
  Reception(std::vector<Socket> listeners, const Member& own) : listeners_(std::move(listeners)), own_(own) {}

  struct Guest {
    Claim claim;
    Socket socket;
  };
  // The next member that `judge` accepts; nothing when the wait is over. Throws BackendError when the system gives no
  // descriptors.
  using Judge = std::function<Admission(const Claim&)>;
  std::optional<Guest> next(const Judge& judge, Until);

  // What was dropped, for the message that somebody is missing: "; 3 connections were dropped ...". Empty for none.
  std::string dropped() const;

 private:
  void accept_some();

  std::vector<Socket> listeners_;
  const Member& own_;
  std::deque<Newcomer> newcomers_;  // oldest first
  int strangers_ = 0;
  std::string refused_;  // the last member that was not accepted, and why
};

}  // namespace sextant
