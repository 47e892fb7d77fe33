#include "runtime/communicators/tcp_socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

constexpr std::size_t kMostAddresses = 8;
constexpr int kStopTick_ms = 100, kTickWithoutStop_ms = 1000;

// Whether the descriptor is ready before the wait is over.
bool ready(int fd, short events, Until until) {
  do {
    pollfd p{fd, events, 0};
    const int n = poll(&p, 1, until.milliseconds());
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) fail_with_errno("poll");
  } while (!until.over());
  return false;
}

bool again(int error) { return error == EINTR || error == EAGAIN || error == EWOULDBLOCK; }

Socket stream_socket(int family) {
  Socket s(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  if (s.fd() >= 0 && family == AF_INET6) setsockopt(s.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
  return s;
}

sockaddr_in& four(SocketAddress& a) { return reinterpret_cast<sockaddr_in&>(a.storage); }
sockaddr_in6& six(SocketAddress& a) { return reinterpret_cast<sockaddr_in6&>(a.storage); }
const sockaddr_in& four(const SocketAddress& a) { return reinterpret_cast<const sockaddr_in&>(a.storage); }
const sockaddr_in6& six(const SocketAddress& a) { return reinterpret_cast<const sockaddr_in6&>(a.storage); }

}  // namespace

void fail_with_errno(const std::string& what) {
  throw BackendError(fmt::format("{}: {}", what, std::strerror(errno)));
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

int Until::milliseconds() const {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(at - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, stop ? kStopTick_ms : kTickWithoutStop_ms));
}

bool SocketAddress::loopback() const {
  if (storage.ss_family == AF_INET) return ntohl(four(*this).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&six(*this).sin6_addr);
}
int SocketAddress::port() const {  // at the same place in both
  return ntohs(storage.ss_family == AF_INET ? four(*this).sin_port : six(*this).sin6_port);
}
void SocketAddress::set_port(int port) {
  (storage.ss_family == AF_INET ? four(*this).sin_port : six(*this).sin6_port) =
      htons(static_cast<std::uint16_t>(port));
}

std::vector<SocketAddress> resolve(const std::string& name, int port) {
  // "[::1]", as addresses of IPv6 are written before a port.
  const bool bracketed = name.size() > 2 && name.front() == '[' && name.back() == ']';
  const std::string bare = bracketed ? name.substr(1, name.size() - 2) : name;
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  if (const int code = getaddrinfo(bare.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0)
    throw BackendError(fmt::format("the address of rank 0, {}: {}", name, gai_strerror(code)));
  std::vector<SocketAddress> all;
  for (const addrinfo* a = found; a && all.size() < kMostAddresses; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    SocketAddress& one = all.emplace_back();
    std::memcpy(&one.storage, a->ai_addr, a->ai_addrlen);
    one.length = a->ai_addrlen;
  }
  freeaddrinfo(found);
  if (all.empty()) throw BackendError(fmt::format("the address of rank 0, {}: neither IPv4 nor IPv6", name));
  return all;
}

bool written_as_loopback(const std::string& name) {
  return name == "localhost" || name.starts_with("127.") || name == "::1" || name == "[::1]";
}

SocketAddress own_address(const Socket& s) {
  SocketAddress a;
  if (getsockname(s.fd(), reinterpret_cast<sockaddr*>(&a.storage), &a.length) != 0)
    fail_with_errno("getsockname");
  return a;
}
SocketAddress peer_address(const Socket& s) {
  SocketAddress a;
  if (getpeername(s.fd(), reinterpret_cast<sockaddr*>(&a.storage), &a.length) != 0)
    fail_with_errno("getpeername");
  return a;
}

Endpoint endpoint_of(const SocketAddress& a) {
  Endpoint e;
  e.port = static_cast<std::uint32_t>(a.port());
  e.family = a.storage.ss_family == AF_INET ? 4 : 6;
  if (e.family == 4)
    std::memcpy(e.address, &four(a).sin_addr, 4);
  else
    std::memcpy(e.address, &six(a).sin6_addr, 16);
  return e;
}

SocketAddress address_of(const Endpoint& e, const SocketAddress& beside) {
  SocketAddress a;
  if (e.family == 4) {
    a.storage.ss_family = AF_INET;
    a.length = sizeof(sockaddr_in);
    std::memcpy(&four(a).sin_addr, e.address, 4);
  } else {
    a.storage.ss_family = AF_INET6;
    a.length = sizeof(sockaddr_in6);
    std::memcpy(&six(a).sin6_addr, e.address, 16);
    if (IN6_IS_ADDR_LINKLOCAL(&six(a).sin6_addr) && beside.storage.ss_family == AF_INET6)
      six(a).sin6_scope_id = six(beside).sin6_scope_id;
  }
  a.set_port(static_cast<int>(e.port));
  return a;
}

Socket listen_at(const SocketAddress& at) {
  Socket s = stream_socket(at.storage.ss_family);
  if (s.fd() < 0) return s;
  const int yes = 1;
  setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(s.fd(), at.get(), at.length) != 0 || listen(s.fd(), SOMAXCONN) != 0) {
    const int error = errno;
    s = Socket();
    errno = error;
  }
  return s;
}

std::vector<Socket> listen_everywhere(int port) {
  std::vector<Socket> listeners;
  for (const bool ipv6 : {false, true}) {
    SocketAddress any;
    any.storage.ss_family = ipv6 ? AF_INET6 : AF_INET;
    any.length = ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    any.set_port(port);
    Socket s = listen_at(any);
    if (s.fd() < 0 && !ipv6) fail_with_errno(fmt::format("port {} of this machine cannot be taken", port));
    if (s.fd() < 0) continue;  // a machine without IPv6
    port = own_address(s).port();
    listeners.push_back(std::move(s));
  }
  return listeners;
}

Socket accept_from(const Socket& listener) {
  return Socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Socket connect_once(const SocketAddress& at, Until until) {
  Socket s = stream_socket(at.storage.ss_family);
  if (s.fd() < 0) return s;
  if (::connect(s.fd(), at.get(), at.length) == 0) return s;
  if (errno != EINPROGRESS || !ready(s.fd(), POLLOUT, until)) return Socket();
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(s.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return Socket();
  return s;
}

bool still_stands(const Socket& s) {
  if (s.fd() < 0) return false;
  char byte = 0;
  const ssize_t n = ::recv(s.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 || (n < 0 && again(errno));
}

bool read_bytes(int fd, void* to, std::size_t bytes, Until until) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    if (!ready(fd, POLLIN, until)) return false;
    const ssize_t got = ::recv(fd, at, bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && !again(errno))) return false;
    if (got > 0) {
      at += got;
      bytes -= static_cast<std::size_t>(got);
    }
  }
  return true;
}

bool write_bytes(int fd, const void* from, std::size_t bytes, Until until) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    if (!ready(fd, POLLOUT, until)) return false;
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && !again(errno)) return false;
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<std::size_t>(sent);
    }
  }
  return true;
}

}  // namespace sextant
