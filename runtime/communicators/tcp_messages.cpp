#include "runtime/communicators/tcp_messages.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace sextant {
namespace {

constexpr std::int64_t kMostData = std::int64_t{1} << 40, kMostWords = std::int64_t{1} << 20;
constexpr std::size_t kFirst = std::size_t{1} << 20;   // of a payload, before any of it has come
constexpr std::size_t kAtOnce = std::size_t{8} << 20;  // from one peer, before others have their turn
constexpr int kSendTick_ms = 100;                      // how often a wait asks whether to go on

std::int64_t most_bytes(MessageKind kind) {
  switch (kind) {
    case MessageKind::data:
      return kMostData;
    case MessageKind::abort:
    case MessageKind::answer:
    case MessageKind::here:
    case MessageKind::members:
      return kMostWords;
    case MessageKind::goodbye:
    case MessageKind::call:
    case MessageKind::left_out:
      return 0;
  }
  return -1;
}

bool would_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

bool Inflow::begin_message() {
  if (header_.magic != MessageHeader().magic || header_.bytes < 0 ||
      header_.bytes > most_bytes(header_.kind)) {
    fault_ = "what it sends is no message of this program";
    return false;
  }
  message_ = {header_.kind, header_.channel, {}};
  in_payload_ = true;
  got_ = 0;
  return true;
}

void Inflow::grow() {
  const std::size_t whole = static_cast<std::size_t>(header_.bytes);
  if (got_ == message_.payload.size()) message_.payload.resize(std::min(whole, std::max(kFirst, 2 * got_)));
}

bool Inflow::take_in(int fd, const std::function<void(Message&&)>& handle) {
  for (std::size_t taken = 0; taken < kAtOnce;) {
    if (in_payload_) grow();
    void* to = in_payload_ ? static_cast<void*>(message_.payload.data() + got_)
                           : static_cast<void*>(reinterpret_cast<std::byte*>(&header_) + got_);
    const std::size_t room = (in_payload_ ? message_.payload.size() : sizeof header_) - got_;
    const ssize_t n = ::recv(fd, to, room, MSG_DONTWAIT);
    if (n < 0 && would_wait(errno)) return true;
    if (n <= 0) {
      closed_ = n == 0 || errno == ECONNRESET;
      return false;
    }
    got_ += static_cast<std::size_t>(n);
    taken += static_cast<std::size_t>(n);
    if (!in_payload_ && got_ == sizeof header_ && !begin_message()) return false;
    if (!in_payload_ || static_cast<std::int64_t>(got_) < header_.bytes) continue;
    in_payload_ = false;
    got_ = 0;
    handle(std::move(message_));
  }
  return true;
}

Sent send_message(int fd, const MessageHeader& header, const void* data, const std::function<bool()>& go_on) {
  std::array<iovec, 2> parts = {iovec{const_cast<MessageHeader*>(&header), sizeof header},
                                iovec{const_cast<void*>(data), static_cast<std::size_t>(header.bytes)}};
  std::size_t first = 0;
  while (true) {
    while (first < parts.size() && parts[first].iov_len == 0) ++first;
    if (first == parts.size()) return Sent::all;
    msghdr message{};
    message.msg_iov = &parts[first];
    message.msg_iovlen = parts.size() - first;
    const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && !would_wait(errno)) return Sent::ended;
    std::size_t left = static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
    for (std::size_t i = first; i < parts.size() && left > 0; ++i) {
      const std::size_t of_this = std::min(left, parts[i].iov_len);
      parts[i].iov_base = static_cast<char*>(parts[i].iov_base) + of_this;
      parts[i].iov_len -= of_this;
      left -= of_this;
    }
    if (sent > 0) continue;
    if (!go_on()) return Sent::stopped;
    pollfd wait{fd, POLLOUT, 0};
    poll(&wait, 1, kSendTick_ms);
  }
}

}  // namespace sextant
