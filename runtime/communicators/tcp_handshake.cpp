#include "runtime/communicators/tcp_handshake.hpp"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

Proof proof_of_hello(const Member& own, int accepts, const Nonce& challenge, const Hello& hello) {
  return own.prover.of("connects", accepts, challenge, hello.claim, hello.nonce);
}
Proof proof_of_welcome(const Member& own, int connects, const Nonce& hello, const Nonce& challenge,
                       Admission v) {
  return own.prover.of("accepts", connects, hello, challenge, v);
}

}  // namespace

Member::Member(const TcpWorld& world) : prover(world.secret) {
  claim.rank = world.rank;
  claim.ranks = world.ranks;
  claim.generation = static_cast<std::uint32_t>(world.generation);
  claim.settings = world.settings;
  std::copy_n(world.job.begin(), std::min(world.job.size(), claim.job.size() - 1), claim.job.begin());
}

Admission verdict_on(const Claim& other, const Claim& own) {
  if (other.job != own.job) return Admission::other_job;
  if (other.generation != own.generation) return Admission::not_now;
  if (other.ranks != own.ranks) return Admission::other_size;
  if (other.rank <= own.rank || other.rank >= own.ranks) return Admission::no_such_rank;
  return Admission::accepted;
}

std::string explain(Admission verdict, const Claim& own, const std::string& other) {
  switch (verdict) {
    case Admission::accepted:
      return "";
    case Admission::other_size:
      return fmt::format("rank {} is of a job of {} ranks, {} of one of another size", own.rank, own.ranks,
                         other);
    case Admission::other_job:
      return fmt::format("rank {} is of another job than {}", own.rank, other);
    case Admission::no_such_rank:
      return fmt::format("rank {} is not one that {} waits for", own.rank, other);
    case Admission::came_twice:
      return fmt::format("a rank {} has come to {} already", own.rank, other);
    case Admission::other_settings:
      return fmt::format(
          "rank {} was started with other settings than the job that is under way: it needs the "
          "same options, --adapt among them, and the same data",
          own.rank);
    case Admission::not_now:
      return fmt::format("rank {} has come while {} was meeting others", own.rank, other);
  }
  return fmt::format("rank {} is not accepted by {}", own.rank, other);
}

Newcomer::Newcomer(Socket socket, std::chrono::steady_clock::time_point deadline)
    : socket_(std::move(socket)), deadline_(deadline), nonce_(random_nonce()) {
  Challenge challenge;
  challenge.nonce = nonce_;
  if (!send_at_once(fd(), challenge)) deadline_ = {};
}

Newcomer::State Newcomer::advance(const Member& own) {
  while (got_ < sizeof hello_) {
    const ssize_t n =
        ::recv(fd(), reinterpret_cast<char*>(&hello_) + got_, sizeof hello_ - got_, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) return State::stranger;
    got_ += static_cast<std::size_t>(n);
    if (got_ >= sizeof hello_.magic && hello_.magic != kHandshakeMagic) return State::stranger;
  }
  if (got_ < sizeof hello_) return State::waiting;
  const bool proved = same_proof(hello_.proof, proof_of_hello(own, own.claim.rank, nonce_, hello_));
  return proved ? State::whole : State::stranger;
}

std::optional<Socket> Newcomer::answer(Admission verdict, const Member& own) {
  const Welcome welcome{verdict, proof_of_welcome(own, claim().rank, hello_.nonce, nonce_, verdict)};
  if (!send_at_once(fd(), welcome)) return std::nullopt;
  return std::move(socket_);
}

Introduction introduce(const Socket& s, const Member& own, int other, const std::string& name_of_other,
                       Until until) {
  Challenge challenge;
  if (!read_value(s.fd(), challenge, until) || challenge.magic != kHandshakeMagic)
    return Introduction::closed;
  Hello hello;
  hello.claim = own.claim;
  hello.nonce = random_nonce();
  hello.proof = proof_of_hello(own, other, challenge.nonce, hello);
  Welcome welcome;
  if (!write_value(s.fd(), hello, until)) return Introduction::closed;
  if (!read_value(s.fd(), welcome, until))
    return until.over() ? Introduction::closed : Introduction::not_proved;
  const Proof expected = proof_of_welcome(own, own.claim.rank, hello.nonce, challenge.nonce, welcome.verdict);
  if (!same_proof(welcome.proof, expected)) return Introduction::not_proved;
  if (welcome.verdict == Admission::not_now) return Introduction::closed;
  if (welcome.verdict != Admission::accepted)
    throw BackendError(explain(welcome.verdict, own.claim, name_of_other));
  return Introduction::accepted;
}

bool is_let_in(const TcpWorld& job, const Member& own, Seconds patience) {
  const Until until{
      std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                             std::chrono::duration<double>(patience.v)),
      job.stop};
  for (const SocketAddress& address : resolve(job.address, job.port)) {
    const Socket s = connect_once(address, until);
    if (s.fd() >= 0 && introduce(s, own, 0, "who listens there", until) == Introduction::accepted)
      return true;
  }
  return false;
}

}  // namespace sextant
