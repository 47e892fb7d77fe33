#include "runtime/communicators/tcp_meeting.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "core/base/error.hpp"
#include "runtime/communicators/tcp_reception.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetry{100}, kRetryRefused{1000};
// Who listens at an address may be a stranger, until the one that is waited for has taken it.
constexpr std::chrono::seconds kRefused{30};
// One that answers nothing for so long is tried anew; so is a way there on which nothing comes back.
constexpr std::chrono::seconds kAttempt{60}, kWay{15};
constexpr Seconds kUnderWayAnswers{5};
constexpr std::size_t kMostNamed = 8;

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

class TcpMeeting {
 public:
  explicit TcpMeeting(const TcpWorld& world)
      : world_(world),
        own_(world),
        until_{Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(world.patience.v)),
               world.stop},
        sockets_(at(world.ranks)),
        places_(at(world.ranks)) {}

  Met meet() {
    if (const auto place = world_.rank > 0 ? join() : world_.ranks > 1 ? receive_all() : std::nullopt)
      return take_place(*place);
    for (const Socket& s : sockets_)
      if (s.fd() >= 0) tune(s);
    return {world_.rank, false, std::move(sockets_)};
  }

 private:
  // A place, where the job is under way.
  std::optional<Standing> receive_all();
  std::optional<Standing> join();
  Standing standing();
  Met take_place(const Standing& place) const;
  void accept_from_ranks_after(int rank, Reception&);
  void connect_to(int rank, const std::vector<SocketAddress>& addresses, const std::string& name);
  void require_listeners(const SocketAddress& own);
  void add_addresses();
  BackendError late(const std::string& who) const;
  void tell_waiting(const std::string& for_whom);
  static void tune(const Socket&);

  const TcpWorld& world_;
  Member own_;
  Until until_;
  std::vector<Socket> sockets_;
  std::vector<Endpoint> places_;   // where each rank listens for later ones
  std::vector<Socket> listeners_;  // of a rank beyond 0
  bool under_way_ = false;         // the job is, as one of its ranks has said: this one comes late
  Clock::time_point silent_since_ = Clock::now();
  Seconds silence_ = world_.told_after;
};

BackendError TcpMeeting::late(const std::string& who) const {
  if (until_.stopped()) return BackendError(fmt::format("{} when the run was asked to end", who));
  return BackendError(fmt::format("{} within {:.3g} s", who, world_.patience.v));
}

// Whoever looks at a job that does not begin wants to know who is missing. Each time after twice as long a silence.
void TcpMeeting::tell_waiting(const std::string& for_whom) {
  const auto now = Clock::now();
  if (!world_.tell || now - silent_since_ < std::chrono::duration<double>(silence_.v)) return;
  silent_since_ = now;
  silence_ = 2 * silence_;
  const double left = std::chrono::duration<double>(until_.at - now).count();
  world_.tell(fmt::format("rank {} waits for {}, for another {:.0f} s at most", world_.rank, for_whom,
                          std::max(0.0, left)));
}

// Small messages go at once; a machine that is gone without a word is noticed within two minutes.
void TcpMeeting::tune(const Socket& s) {
  const auto set = [&](int level, int name, int value) {
    setsockopt(s.fd(), level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 15);
  set(IPPROTO_TCP, TCP_KEEPCNT, 6);
}

std::optional<Standing> TcpMeeting::receive_all() {
  std::vector<Socket> listeners;
  try {
    listeners = listeners_of_job(world_.address, world_.port);
  } catch (const BackendError&) {
    // The port is taken: by the job itself, where it goes on without the rank 0 that began it.
    if (!world_.outlives_ranks || world_.generation > 0 || !is_let_in(world_, own_, kUnderWayAnswers)) throw;
    return standing();
  }
  {
    Reception reception(std::move(listeners), own_);
    accept_from_ranks_after(0, reception);
  }
  if (under_way_) {
    std::this_thread::sleep_for(kRetry);
    return standing();
  }
  add_addresses();
  for (int r = 1; r < world_.ranks; ++r)
    if (const int fd = sockets_[at(r)].fd();
        !write_value(fd, Standing{}, until_) ||
        !write_bytes(fd, places_.data(), places_.size() * sizeof(Endpoint), until_))
      throw late(fmt::format("rank {} has not answered", r));
  return std::nullopt;
}

void TcpMeeting::accept_from_ranks_after(int rank, Reception& reception) {
  const auto judge = [&](const Claim& claim) {
    if (world_.outlives_ranks && claim.job == own_.claim.job && claim.generation > own_.claim.generation)
      under_way_ = true;
    const Admission verdict = verdict_on(claim, own_.claim);
    // Of one that gave up and comes again it does not.
    if (verdict == Admission::accepted && still_stands(sockets_[at(claim.rank)]))
      return Admission::came_twice;
    return verdict;
  };
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = rank + 1; r < world_.ranks; ++r)
      if (sockets_[at(r)].fd() < 0) ranks.push_back(r);
    return ranks;
  };
  for (std::vector<int> waiting = missing(); !waiting.empty(); waiting = missing()) {
    auto guest = reception.next(judge, {std::min(until_.at, Clock::now() + kRetry), until_.stop});
    if (under_way_) return;
    if (!guest) {
      const std::size_t named = std::min(waiting.size(), kMostNamed);
      const auto last = waiting.begin() + static_cast<std::ptrdiff_t>(named);
      const std::string who =
          fmt::format("{} of {} ranks ({}{})", waiting.size(), world_.ranks,
                      fmt::join(waiting.begin(), last, ", "), waiting.size() > named ? ", ..." : "");
      if (until_.over())
        throw BackendError(late(fmt::format("{} have not come to rank {}", who, rank)).what() +
                           reception.dropped());
      tell_waiting(who +
                   (rank == 0 ? fmt::format(" to come to {}:{}", world_.address, world_.port) : " to come"));
      continue;
    }
    places_[at(guest->claim.rank)].port = guest->claim.port;
    sockets_[at(guest->claim.rank)] = std::move(guest->socket);
  }
}

// Addresses under which the others reach each rank. A rank on rank 0's machine may have come by the loopback; ranks elsewhere
// reach its machine as they reach rank 0's.
void TcpMeeting::add_addresses() {
  const Socket* elsewhere = nullptr;
  const auto with_port = [](const SocketAddress& address, std::uint32_t port) {
    Endpoint e = endpoint_of(address);
    e.port = port;
    return e;
  };
  for (int r = 1; r < world_.ranks; ++r)
    if (!peer_address(sockets_[at(r)]).loopback()) elsewhere = &sockets_[at(r)];
  for (int r = 1; r < world_.ranks; ++r) {
    const SocketAddress peer = peer_address(sockets_[at(r)]);
    const SocketAddress seen = elsewhere && peer.loopback() ? own_address(*elsewhere) : peer;
    places_[at(r)] = with_port(seen, places_[at(r)].port);
  }
}

// Where later ranks reach this one: on the interface that leads to rank 0, or everywhere if that is a loopback by accident.
void TcpMeeting::require_listeners(const SocketAddress& own) {
  if (!listeners_.empty()) return;
  SocketAddress address = own;
  address.set_port(0);
  if (own.loopback() && !written_as_loopback(world_.address)) {
    listeners_ = listen_everywhere(0);
  } else {
    Socket s = listen_at(address);
    if (s.fd() < 0) fail_with_errno("no port can be listened on");
    listeners_.push_back(std::move(s));
  }
  own_.claim.port = static_cast<std::uint32_t>(own_address(listeners_.front()).port());
}

// Tries until it is accepted: the other may not listen yet.
void TcpMeeting::connect_to(int rank, const std::vector<SocketAddress>& addresses, const std::string& name) {
  std::optional<Clock::time_point> refused_since;
  while (true) {
    bool refused = false;
    for (const SocketAddress& address : addresses) {
      Socket s = connect_once(address, {std::min(until_.at, Clock::now() + kWay), until_.stop});
      if (s.fd() < 0) continue;
      if (rank == 0 && world_.rank < world_.ranks - 1) require_listeners(own_address(s));
      const Until attempt{std::min(until_.at, Clock::now() + kAttempt), until_.stop};
      const Introduction answer = introduce(s, own_, rank, name, attempt);
      if (answer == Introduction::accepted) {
        sockets_[at(rank)] = std::move(s);
        return;
      }
      refused |= answer == Introduction::not_proved;
    }
    if (!refused)
      refused_since.reset();
    else if (!refused_since)
      refused_since = Clock::now();
    const auto wait = refused ? kRetryRefused : kRetry;
    const bool over = until_.stopped() || Clock::now() + wait >= until_.at;
    if (refused && (over || Clock::now() - *refused_since > kRefused))
      throw BackendError(fmt::format(
          "{} does not accept rank {}: they have not the same secret. This process has that of {}; "
          "all processes of the job need one",
          name, world_.rank, world_.secret_source));
    if (over) throw late(fmt::format("{} was not reached", name));
    tell_waiting(name + (refused ? ", which does not accept its secret" : " to answer"));
    std::this_thread::sleep_for(wait);
  }
}

// What rank 0 says. A job that is under way lets one in when that pays, or never: no patience runs out meanwhile.
Standing TcpMeeting::standing() {
  Standing said;
  bool waits = false;
  const auto hear = [&] {
    const int fd = sockets_[0].fd();
    return waits ? read_value(fd, said, Until{Clock::time_point::max(), world_.stop})
                 : read_value(fd, said, until_);
  };
  while (true) {
    connect_to(0, resolve(world_.address, world_.port),
               fmt::format("rank 0 at {}:{}", world_.address, world_.port));
    bool heard = hear();
    if (heard && said.kind == Standing::Kind::wait) {
      tune(sockets_[0]);
      if (!std::exchange(waits, true) && world_.tell)
        world_.tell("the job is under way: this process waits until a layout takes it in");
      heard = hear();
    }
    if (!heard && (!waits || until_.stopped())) throw late("rank 0 has ended, or has not answered");
    if (heard && said.kind == Standing::Kind::over)
      throw BackendError("the job has ended, and no layout has taken this process in");
    if (heard && said.kind != Standing::Kind::again) return said;
    sockets_[0] = Socket();  // the first of the job is another now, or lets in others
    until_.at = Clock::now() +
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(world_.patience.v));
    std::this_thread::sleep_for(kRetry);
  }
}

Met TcpMeeting::take_place(const Standing& place) const {
  TcpWorld next = world_;
  next.rank = place.rank;
  next.ranks = place.ranks;
  next.generation = static_cast<int>(place.generation);
  next.patience = kToBeAdmitted;
  if (place.rank <= 0 || place.rank >= place.ranks)
    throw BackendError("rank 0 has given no place that there is");
  Met met = TcpMeeting(next).meet();
  met.joined = true;
  return met;
}

std::optional<Standing> TcpMeeting::join() {
  if (const Standing said = standing(); said.kind == Standing::Kind::place) return said;
  if (!read_bytes(sockets_[0].fd(), places_.data(), places_.size() * sizeof(Endpoint), until_))
    throw late("rank 0 has ended, or has not answered");
  const SocketAddress here = own_address(sockets_[0]);
  for (int r = 1; r < world_.rank; ++r)
    connect_to(r, {address_of(places_[at(r)], here)}, fmt::format("rank {}", r));
  if (world_.rank == world_.ranks - 1) return std::nullopt;
  Reception reception(std::move(listeners_), own_);
  accept_from_ranks_after(world_.rank, reception);
  return std::nullopt;
}

}  // namespace

Met meet(const TcpWorld& world) { return TcpMeeting(world).meet(); }

}  // namespace sextant
