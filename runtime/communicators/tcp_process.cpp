#include "runtime/communicators/tcp_process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

constexpr std::uint32_t kMagic = 0x73787431;  // "sxt1": both ends are of this program, and in step
enum Kind : std::uint32_t { kData, kAbort, kGoodbye, kCall, kAnswer };
constexpr std::size_t kChunk = std::size_t{256} << 10;
constexpr int kTick_ms = 100;  // how often a wait looks whether the job is over
constexpr std::chrono::milliseconds kRetry{100};
constexpr std::chrono::seconds kLinger{10}, kLingerAborted{2};  // for others that are not done yet
constexpr std::chrono::seconds kGreeting{10};  // a stray connection may keep rank 0 waiting so long

struct Header {
  std::uint32_t magic, kind;
  std::uint64_t channel;
  std::int64_t bytes;
};

// What a process says of itself when it connects.
struct Hello {
  std::uint32_t magic = kMagic;
  std::int32_t rank = 0, ranks = 0;
  std::uint32_t port = 0;  // on which it listens
  std::array<char, 64> job{};
};
// Rank 0's answer; why is empty when all is well.
struct Welcome {
  std::array<char, 160> why{};
};
struct Endpoint {
  std::uint32_t address = 0, port = 0;  // IPv4, as the network has it; port as the host has it
};

[[noreturn]] void fail(const std::string& what) {
  throw BackendError(fmt::format("{}: {}", what, std::strerror(errno)));
}

template <std::size_t N>
void put(std::array<char, N>& to, std::string_view text) {
  to.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), N - 1), to.begin());
}

// How long to wait: to a point in time, or until somebody asks to end.
struct Until {
  Deadline at;
  const std::atomic<bool>* stop = nullptr;
  bool stopped() const { return stop && stop->load(); }
  bool over() const { return stopped() || Clock::now() >= at; }
  int milliseconds() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(at - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, stop ? 200 : 1000));
  }
};

// Whether the descriptor is ready before the wait is over.
bool ready(int fd, short events, Until until) {
  do {
    pollfd p{fd, events, 0};
    const int n = poll(&p, 1, until.milliseconds());
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) fail("poll");
  } while (!until.over());
  return false;
}

template <class T>
bool read_value(int fd, T* values, std::size_t n, Until until) {
  auto* to = reinterpret_cast<char*>(values);
  std::size_t left = n * sizeof(T);
  while (left > 0) {
    if (!ready(fd, POLLIN, until)) return false;
    const ssize_t got = ::recv(fd, to, left, 0);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return false;
    if (got > 0) to += got, left -= static_cast<std::size_t>(got);
  }
  return true;
}
template <class T>
bool write_value(int fd, const T* values, std::size_t n, Until until) {
  const auto* from = reinterpret_cast<const char*>(values);
  std::size_t left = n * sizeof(T);
  while (left > 0) {
    if (!ready(fd, POLLOUT, until)) return false;
    const ssize_t sent = ::send(fd, from, left, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (sent > 0) from += sent, left -= static_cast<std::size_t>(sent);
  }
  return true;
}

Socket listen_on(int port, int ranks, std::uint32_t& bound) {
  Socket s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (s.fd() < 0) fail("socket");
  const int yes = 1;
  setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_ANY);
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  if (bind(s.fd(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
    fail(fmt::format("port {} of this machine cannot be taken", port));
  if (listen(s.fd(), std::max(ranks, 16)) != 0) fail("listen");
  socklen_t length = sizeof at;
  if (getsockname(s.fd(), reinterpret_cast<sockaddr*>(&at), &length) != 0) fail("getsockname");
  bound = ntohs(at.sin_port);
  return s;
}

// One that was accepted, with its first words; nothing when the wait is over.
std::pair<Socket, Hello> accept_one(const Socket& listener, Until until) {
  while (ready(listener.fd(), POLLIN, until)) {
    Socket s(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (s.fd() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      fail("accept");
    }
    Hello hello;
    if (read_value(s.fd(), &hello, 1, {std::min(until.at, Clock::now() + kGreeting), until.stop}) &&
        hello.magic == kMagic)
      return {std::move(s), hello};
  }
  return {Socket(), Hello{}};
}

Socket connect_to(const sockaddr_in& at, Until until) {
  while (true) {
    Socket s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (s.fd() < 0) fail("socket");
    if (::connect(s.fd(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0) return s;
    if (until.stopped() || Clock::now() + kRetry >= until.at) return Socket();
    std::this_thread::sleep_for(kRetry);  // it may not listen yet
  }
}

sockaddr_in resolve(const TcpWorld& world) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET, hints.ai_socktype = SOCK_STREAM;
  if (const int code = getaddrinfo(world.address.c_str(), std::to_string(world.port).c_str(), &hints, &found);
      code != 0)
    throw BackendError(fmt::format("the address of rank 0, {}: {}", world.address, gai_strerror(code)));
  sockaddr_in at{};
  std::memcpy(&at, found->ai_addr, sizeof at);
  freeaddrinfo(found);
  return at;
}

bool loopback(std::uint32_t address) { return (ntohl(address) >> 24) == 127; }

// Addresses under which the others reach each rank. A rank beside rank 0 may have come by the loopback; ranks elsewhere
// reach its machine as they reach rank 0's.
void add_addresses(std::vector<Endpoint>& places, const std::vector<Socket>& sockets) {
  std::uint32_t own = 0;
  for (std::size_t r = 1; r < places.size(); ++r) {
    sockaddr_in peer{}, self{};
    socklen_t length = sizeof peer;
    if (getpeername(sockets[r].fd(), reinterpret_cast<sockaddr*>(&peer), &length) != 0) fail("getpeername");
    length = sizeof self;
    if (getsockname(sockets[r].fd(), reinterpret_cast<sockaddr*>(&self), &length) != 0) fail("getsockname");
    places[r].address = peer.sin_addr.s_addr;
    if (!loopback(peer.sin_addr.s_addr)) own = self.sin_addr.s_addr;
  }
  for (Endpoint& place : places)
    if (own != 0 && loopback(place.address)) place.address = own;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

TcpProcess::TcpProcess(const TcpWorld& world) : rank_(world.rank) {
  peers_.resize(static_cast<std::size_t>(world.ranks));
  connect(world);
  reader_ = std::thread([this] { read_all(); });
}

// A connection that is closed with something unread takes what its other end has not read yet with it: so each end says
// that it sends no more, and reads on until the others have said so too.
TcpProcess::~TcpProcess() {
  for (int peer = 0; peer < size(); ++peer) {
    const auto& p = peers_[static_cast<std::size_t>(peer)];
    if (!p) continue;
    try {
      std::string reason;
      const bool aborted = aborted_;
      if (aborted) {
        const std::lock_guard lock(mutex_);
        reason = reason_;
      }
      // The word that ends the job goes on from each to each: whoever has not heard it yet takes the end of a connection
      // for the cause.
      write(peer, aborted ? kAbort : kGoodbye, 0, reason.data(), std::ssize(reason));
    } catch (const BackendError&) {  // it is gone already
    }
    ::shutdown(p->socket.fd(), SHUT_WR);
  }
  {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, aborted_ ? kLingerAborted : kLinger, [&] {
      return std::ranges::all_of(
          peers_, [&](const auto& p) { return !p || p->gone || (p->said_goodbye && !aborted_); });
    });
  }
  closing_ = true;
  reader_.join();
}

void TcpProcess::connect(const TcpWorld& world) {
  const Until deadline{Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(world.patience.v)),
                       world.stop};
  const auto late = [&](const std::string& who) {
    if (deadline.stopped()) return BackendError(fmt::format("{} when the run was asked to end", who));
    return BackendError(fmt::format("{} within {:.3g} s", who, world.patience.v));
  };
  const int n = world.ranks;
  Hello own;
  own.rank = rank_, own.ranks = n;
  put(own.job, world.job);
  std::vector<Socket> sockets(static_cast<std::size_t>(n));
  const Socket listener = listen_on(rank_ == 0 ? world.port : 0, n, own.port);
  std::vector<Endpoint> places(static_cast<std::size_t>(n));
  if (rank_ == 0) {
    for (int waiting = n - 1; waiting > 0; --waiting) {
      auto [s, hello] = accept_one(listener, deadline);
      if (s.fd() < 0) {
        std::vector<int> missing;
        for (int r = 1; r < n; ++r)
          if (sockets[static_cast<std::size_t>(r)].fd() < 0) missing.push_back(r);
        const std::size_t named = std::min<std::size_t>(missing.size(), 8);
        throw late(fmt::format(
            "{} of {} ranks ({}{}) have not come to rank 0", waiting, n,
            fmt::join(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(named), ", "),
            missing.size() > named ? ", ..." : ""));
      }
      std::string why;
      if (hello.ranks != n)
        why = fmt::format("rank {} is of a job of {} ranks, rank 0 of one of {}", hello.rank, hello.ranks, n);
      else if (hello.job != own.job)
        why = fmt::format("rank {} is of another job", hello.rank);
      else if (hello.rank < 1 || hello.rank >= n || sockets[static_cast<std::size_t>(hello.rank)].fd() >= 0)
        why = fmt::format("rank {} has come twice, or is no rank of the job", hello.rank);
      if (!why.empty()) {
        Welcome refusal;
        put(refusal.why, why);
        write_value(s.fd(), &refusal, 1, deadline);
        throw BackendError(why);
      }
      places[static_cast<std::size_t>(hello.rank)].port = hello.port;
      sockets[static_cast<std::size_t>(hello.rank)] = std::move(s);
    }
    add_addresses(places, sockets);
    for (int r = 1; r < n; ++r) {
      const int fd = sockets[static_cast<std::size_t>(r)].fd();
      const Welcome welcome;
      if (!write_value(fd, &welcome, 1, deadline) || !write_value(fd, places.data(), places.size(), deadline))
        throw late(fmt::format("rank {} has not answered", r));
    }
  } else {
    Socket& first = sockets[0] = connect_to(resolve(world), deadline);
    Welcome welcome;
    if (first.fd() < 0) throw late(fmt::format("rank 0 was not found at {}:{}", world.address, world.port));
    if (!write_value(first.fd(), &own, 1, deadline) || !read_value(first.fd(), &welcome, 1, deadline))
      throw late("rank 0 has ended, or has not answered");
    if (welcome.why[0]) throw BackendError(welcome.why.data());
    if (!read_value(first.fd(), places.data(), places.size(), deadline))
      throw late("rank 0 has ended, or has not answered");
    for (int r = 1; r < rank_; ++r) {
      sockaddr_in at{};
      at.sin_family = AF_INET;
      at.sin_addr.s_addr = places[static_cast<std::size_t>(r)].address;
      at.sin_port = htons(static_cast<std::uint16_t>(places[static_cast<std::size_t>(r)].port));
      Socket s = connect_to(at, deadline);
      if (s.fd() < 0 || !write_value(s.fd(), &own, 1, deadline))
        throw late(fmt::format("rank {} was not reached", r));
      sockets[static_cast<std::size_t>(r)] = std::move(s);
    }
    for (int waiting = n - 1 - rank_; waiting > 0; --waiting) {
      auto [s, hello] = accept_one(listener, deadline);
      if (s.fd() < 0) throw late(fmt::format("{} ranks have not come to rank {}", waiting, rank_));
      if (hello.job != own.job || hello.rank <= rank_ || hello.rank >= n) {
        ++waiting;
        continue;
      }
      sockets[static_cast<std::size_t>(hello.rank)] = std::move(s);
    }
  }
  for (int r = 0; r < n; ++r) {
    if (r == rank_) continue;
    auto peer = std::make_unique<Peer>();
    peer->socket = std::move(sockets[static_cast<std::size_t>(r)]);
    const int yes = 1;
    setsockopt(peer->socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    peers_[static_cast<std::size_t>(r)] = std::move(peer);
  }
}

void TcpProcess::require_running() const {
  if (aborted_) throw Aborted(reason_);
}

void TcpProcess::write(int peer, std::uint32_t kind, std::uint64_t channel, const void* data,
                       std::int64_t bytes) {
  Peer& p = *peers_[static_cast<std::size_t>(peer)];
  std::unique_lock lock(p.sending, std::defer_lock);
  // The word that ends the job does not wait for a message that may be stuck: its receiver then sees the connection end. Nor
  // does the question who is there. ThreadSanitizer does not see waits by the steady clock (pthread_mutex_clocklock).
  if (kind == kData || kind == kGoodbye)
    lock.lock();
  else if (!lock.try_lock_until(std::chrono::system_clock::now() +
                                std::chrono::seconds(kind == kAbort ? 2 : 1)))
    return;
  const Header header{kMagic, kind, channel, bytes};
  const auto all = [&](const void* from, std::size_t left) {
    const auto* at = static_cast<const char*>(from);
    const Deadline give_up = Clock::now() + std::chrono::seconds(kind == kData ? 1 << 20 : 2);
    while (left > 0) {
      const ssize_t sent = ::send(p.socket.fd(), at, left, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        at += sent, left -= static_cast<std::size_t>(sent);
        continue;
      }
      if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        const int error = errno;
        if (kind == kData) {  // what it said before it ended is still being read
          std::unique_lock reason(mutex_);
          arrived_.wait_for(reason, std::chrono::seconds(2), [&] { return aborted_ || p.gone; });
          require_running();
        }
        throw BackendError(fmt::format("rank {} has gone: {}", peer, std::strerror(error)));
      }
      if ((kind == kData && aborted_) || Clock::now() > give_up) {
        // What follows would be taken for the rest of this message.
        ::shutdown(p.socket.fd(), SHUT_WR);
        const std::lock_guard reason(mutex_);
        require_running();
        throw BackendError(fmt::format("rank {} takes in nothing", peer));
      }
      pollfd wait{p.socket.fd(), POLLOUT, 0};
      poll(&wait, 1, kTick_ms);
    }
  };
  all(&header, sizeof header);
  if (bytes > 0) all(data, static_cast<std::size_t>(bytes));
}

void TcpProcess::send(std::uint64_t channel, int peer, const void* data, std::int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    require_running();
  }
  write(peer, kData, channel, data, bytes);
}

void TcpProcess::recv(std::uint64_t channel, int peer, void* data, std::int64_t bytes) {
  std::unique_lock lock(mutex_);
  auto& queue = inbox_[{channel, peer}];
  const auto waiting = awaited_.insert(peer);
  const Peer& other = *peers_[static_cast<std::size_t>(peer)];  // what it has sent comes before its goodbye
  arrived_.wait(lock, [&] { return aborted_ || !queue.empty() || other.gone || other.said_goodbye; });
  awaited_.erase(waiting);
  require_running();
  if (queue.empty())
    throw BackendError(fmt::format("rank {} has ended, and its message was waited for", peer));
  const std::vector<std::byte> message = std::move(queue.front());
  queue.pop_front();
  if (std::ssize(message) != bytes)
    throw BackendError(fmt::format("ranks disagree: {} bytes received from rank {}, {} expected",
                                   message.size(), peer, bytes));
  lock.unlock();
  if (bytes > 0) std::memcpy(data, message.data(), message.size());
}

std::vector<int> TcpProcess::awaited() const {
  const std::set<int> ranks(awaited_.begin(), awaited_.end());
  return {ranks.begin(), ranks.end()};
}

void TcpProcess::answer_with(const std::function<std::string()>& state) {
  const std::lock_guard lock(mutex_);
  state_ = state;
}

HoldUps TcpProcess::stalls() {
  {
    const std::lock_guard lock(mutex_);
    answers_.clear();
  }
  for (int peer = 0; peer < size(); ++peer) try {
      if (peers_[static_cast<std::size_t>(peer)]) write(peer, kCall, 0, nullptr, 0);
    } catch (const BackendError&) {  // it takes in nothing, and gives no answer
    }
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, std::chrono::duration<double>(kRollCall.v),
                    [&] { return aborted_ || std::ssize(answers_) + 1 == size(); });
  Answers answers = answers_;
  answers.emplace(rank_, Answer{awaited(), ""});
  HoldUps found = stalls_from(rank_, size(), answers);
  found.over = aborted_;
  return found;
}

void TcpProcess::end_with(std::string reason) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  reason_ = std::move(reason);
  aborted_ = true;
  arrived_.notify_all();
}

void TcpProcess::abort(std::string_view reason) noexcept {
  try {
    if (aborted_) return;
    const std::string text(reason.substr(0, 1000));
    end_with(text);
    for (int peer = 0; peer < size(); ++peer) try {
        if (peers_[static_cast<std::size_t>(peer)])
          write(peer, kAbort, 0, text.data(), static_cast<std::int64_t>(text.size()));
      } catch (const BackendError&) {  // gone: it needs no telling
      }
  } catch (...) {  // no memory for words: the connections end with the process, which says as much
    aborted_ = true;
    arrived_.notify_all();
  }
}

void TcpProcess::read_all() {
  std::vector<pollfd> waits;
  std::vector<int> ranks;
  while (!closing_) {
    waits.clear(), ranks.clear();
    for (int peer = 0; peer < size(); ++peer) {
      const auto& p = peers_[static_cast<std::size_t>(peer)];
      if (!p || p->gone) continue;  // only this thread writes it
      waits.push_back({p->socket.fd(), POLLIN, 0}), ranks.push_back(peer);
    }
    if (poll(waits.data(), waits.size(), kTick_ms) <= 0) continue;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents == 0 || take_in(ranks[i])) continue;
      const int peer = ranks[i];
      Peer& p = *peers_[static_cast<std::size_t>(peer)];
      if (!p.said_goodbye) abort(fmt::format("rank {} has gone without a word", peer));
      const std::lock_guard lock(mutex_);
      p.gone = true;
      arrived_.notify_all();
    }
  }
}

// What has come from a peer. False when there will be no more.
bool TcpProcess::take_in(int peer) {
  Peer& p = *peers_[static_cast<std::size_t>(peer)];
  std::vector<std::byte>& partial = p.partial;
  const std::size_t before = partial.size();
  partial.resize(before + kChunk);
  const ssize_t got = ::recv(p.socket.fd(), partial.data() + before, kChunk, MSG_DONTWAIT);
  partial.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (got == 0) return false;
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  std::size_t at = 0;
  while (partial.size() - at >= sizeof(Header)) {
    Header header{};
    std::memcpy(&header, partial.data() + at, sizeof header);
    if (header.magic != kMagic || header.bytes < 0) {
      abort(fmt::format("what rank {} sends is no message of this program", peer));
      return false;
    }
    const std::size_t whole = sizeof header + static_cast<std::size_t>(header.bytes);
    if (partial.size() - at < whole) {
      partial.reserve(at + whole + kChunk);
      break;
    }
    const auto* from = partial.data() + at + sizeof header;
    handle(peer, header.kind, header.channel, {from, from + header.bytes});
    at += whole;
  }
  partial.erase(partial.begin(), partial.begin() + static_cast<std::ptrdiff_t>(at));
  return true;
}

void TcpProcess::handle(int peer, std::uint32_t kind, std::uint64_t channel, std::vector<std::byte> payload) {
  if (kind == kAbort) end_with({reinterpret_cast<const char*>(payload.data()), payload.size()});
  if (kind == kGoodbye ||
      kind == kAbort) {  // after the reason: who waits for the peer is told it, not that it is gone
    const std::lock_guard lock(mutex_);
    peers_[static_cast<std::size_t>(peer)]->said_goodbye = true;
    arrived_.notify_all();
  } else if (kind == kData) {
    const std::lock_guard lock(mutex_);
    inbox_[{channel, peer}].push_back(std::move(payload));
    arrived_.notify_all();
  } else if (kind == kAnswer) {
    Answer answer = unpacked({reinterpret_cast<const char*>(payload.data()), payload.size()});
    const std::lock_guard lock(mutex_);
    answers_.insert_or_assign(peer, std::move(answer));
    arrived_.notify_all();
  } else if (kind == kCall) {
    std::string answer;
    {
      const std::lock_guard lock(mutex_);
      answer = packed({awaited(), state_ ? state_() : ""});
    }
    try {
      write(peer, kAnswer, 0, answer.data(), std::ssize(answer));
    } catch (const std::exception&) {  // it is gone, or takes in nothing: it will not ask again
    }
  }
}

}  // namespace sextant
