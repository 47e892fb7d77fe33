// What two processes say to each other before either trusts the other. The one that accepts sends a random number, the one
// that connects says who it is and proves the secret, the first proves it in turn with its verdict:
//
//   accepts -> connects   Challenge   random number a
//   connects -> accepts   Hello       who it is, random number c, HMAC(secret; "connects", rank of the other, a, Hello)
//   accepts -> connects   Welcome     verdict, HMAC(secret; "accepts", rank of the other, c, a, verdict)
//
// Messages have one size each, so that nobody asks for memory; who proves nothing hears nothing but the random number.
// What follows on the connection is neither encrypted nor signed: that takes a network that others cannot alter.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/communicators/make_communicator.hpp"
#include "runtime/communicators/tcp_messages.hpp"
#include "runtime/communicators/tcp_proof.hpp"
#include "runtime/communicators/tcp_socket.hpp"

namespace sextant {

// Both ends are of this program, and of one version of its messages.
constexpr std::uint32_t kHandshakeMagic = kMessagesMagic;

// Who a process says it is.
struct Claim {
  std::int32_t rank = 0, ranks = 0;
  std::uint32_t port = 0;  // on which it listens for later ranks; 0 for none
  std::uint32_t generation = 0;
  std::uint32_t settings = 0;
  std::array<char, 64> job{};
};
struct Challenge {
  std::uint32_t magic = kHandshakeMagic;
  Nonce nonce{};
};
struct Hello {
  std::uint32_t magic = kHandshakeMagic;
  Claim claim;
  Nonce nonce{};
  Proof proof{};
};
// not_now: it is to try again.
enum class Admission : std::uint32_t {
  accepted,
  other_size,
  other_job,
  no_such_rank,
  came_twice,
  not_now,
  other_settings
};
struct Welcome {
  Admission verdict = Admission::accepted;
  Proof proof{};
};

// What rank 0 then tells one that it has accepted. The meeting that all come to goes on; or the job is under way, and whoever
// waits is given a place in its next meeting, is to come again, or comes too late.
struct Standing {
  enum class Kind : std::uint32_t { meeting, wait, place, again, over } kind = Kind::meeting;
  std::int32_t rank = 0, ranks = 0;  // the place
  std::uint32_t generation = 0;
};

// One process of a job, as all its handshakes need it.
struct Member {
  explicit Member(const TcpWorld&);
  Prover prover;
  Claim claim;
};
// Why a member that is one is not wanted here; accepted without looking at who has come.
Admission verdict_on(const Claim& other, const Claim& own);
std::string explain(Admission, const Claim& own,
                    const std::string& other);  // for the one that was not accepted

// A connection that was accepted and has proved nothing yet. Never waits.
class Newcomer {
 public:
  Newcomer(Socket, std::chrono::steady_clock::time_point deadline);
  int fd() const { return socket_.fd(); }
  std::chrono::steady_clock::time_point deadline() const { return deadline_; }
  // Takes in what has come. Whole: the claim can be asked for. Stranger: gone, or no process of the job.
  enum class State { waiting, whole, stranger };
  State advance(const Member& own);
  const Claim& claim() const { return hello_.claim; }
  // Tells it the verdict. Nothing where it has gone meanwhile.
  std::optional<Socket> answer(Admission, const Member& own);

 private:
  Socket socket_;
  std::chrono::steady_clock::time_point deadline_;
  Nonce nonce_{};
  Hello hello_;
  std::size_t got_ = 0;
};

// The other side: who has connected introduces itself to rank `other` and waits for the verdict. Not accepted with `other_job`
// and the like throws BackendError, as the verdict is proved; closed and not_proved may be somebody else who listens there.
enum class Introduction { accepted, closed, not_proved };
Introduction introduce(const Socket&, const Member& own, int other, const std::string& name_of_other, Until);

// One try at the address of the job's rank 0, closed at once. BackendError where who listens there is of the job, and does not want it.
bool is_let_in(const TcpWorld& job, const Member& own, Seconds patience);

}  // namespace sextant
