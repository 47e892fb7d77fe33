// Sockets of one job: addresses of IPv4 and IPv6, waits that end, and exact numbers of bytes. Nothing here blocks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <sys/socket.h>

namespace sextant {

// A file descriptor, closed when it leaves scope.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Throws BackendError: what was tried, and the system's reason (errno).
[[noreturn]] void fail_with_errno(const std::string& what);

// How long to wait: to a point in time, or until somebody asks to end.
struct Until {
  std::chrono::steady_clock::time_point at;
  const std::atomic<bool>* stop = nullptr;
  bool stopped() const { return stop && stop->load(); }
  bool over() const { return stopped() || std::chrono::steady_clock::now() >= at; }
  int milliseconds() const;  // for poll; short where somebody may ask to end
};

// An address and a port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool loopback() const;
  int port() const;  // as the host has it
  void set_port(int);
};
// All addresses of a name, at most 8. Throws BackendError where it has none.
std::vector<SocketAddress> resolve(const std::string& name, int port);
bool written_as_loopback(
    const std::string& name);  // "localhost", "127.0.0.1", "::1": no name that hosts read differently
SocketAddress own_address(const Socket&);  // of this end of a connection, or of a listener
SocketAddress peer_address(const Socket&);

// Addresses as processes tell each other; the same bytes on every machine.
struct Endpoint {
  std::uint8_t address[16] = {};
  std::uint32_t family = 0;  // 4 or 6
  std::uint32_t port = 0;
};
Endpoint endpoint_of(const SocketAddress&);
// `beside`: this process's own end of a connection to the same network, for the scope of link-local addresses.
SocketAddress address_of(const Endpoint&, const SocketAddress& beside);

// A listener at one address; at none (descriptor -1, errno set) where that address is not of this machine or is taken.
Socket listen_at(const SocketAddress&);
// Listeners at every address of this machine, IPv4 and IPv6, on one port.
std::vector<Socket> listen_everywhere(int port);
// The next connection, or a descriptor of -1 where none waits.
Socket accept_from(const Socket& listener);
// One try: -1 where nobody listens, or the wait is over.
Socket connect_once(const SocketAddress&, Until);

// Whether the other end has not closed the connection, as far as is known here; at none, false.
bool still_stands(const Socket&);

// False when the other end has gone or the wait is over.
bool read_bytes(int fd, void* to, std::size_t bytes, Until);
bool write_bytes(int fd, const void* from, std::size_t bytes, Until);
// A few bytes behind which nothing waits: the buffer has room for them, or it is not worth waiting for.
template <class T>
bool send_at_once(int fd, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return ::send(fd, &value, sizeof value, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof value);
}
template <class T>
bool read_value(int fd, T& value, Until until) {
  static_assert(std::is_trivially_copyable_v<T>);
  return read_bytes(fd, &value, sizeof value, until);
}
template <class T>
bool write_value(int fd, const T& value, Until until) {
  static_assert(std::is_trivially_copyable_v<T>);
  return write_bytes(fd, &value, sizeof value, until);
}

}  // namespace sextant
