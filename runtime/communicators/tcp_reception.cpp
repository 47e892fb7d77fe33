#include "runtime/communicators/tcp_reception.hpp"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>
#include <poll.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostNewcomers = 128, kAcceptedAtOnce = 16;
constexpr std::chrono::seconds kToProve{10};

}  // namespace

std::vector<Socket> listeners_of_job(const std::string& on, int port) {
  std::vector<Socket> listeners;
  bool loopback_alone = true;
  for (const SocketAddress& address : resolve(on, port)) {
    Socket s = listen_at(address);
    if (s.fd() < 0 && (errno == EADDRINUSE || errno == EACCES) && listeners.empty())
      fail_with_errno(fmt::format("port {} of {} cannot be taken", port, on));
    if (s.fd() < 0) continue;
    loopback_alone &= address.loopback();
    listeners.push_back(std::move(s));
  }
  if (loopback_alone && !written_as_loopback(on)) {
    listeners.clear();
    listeners = listen_everywhere(port);
  }
  return listeners;
}

std::optional<Reception::Guest> Reception::next(const Judge& judge, Until until) {
  std::vector<pollfd> waits;
  do {
    waits.clear();
    for (const Socket& s : listeners_) waits.push_back({s.fd(), POLLIN, 0});
    for (const Newcomer& n : newcomers_) waits.push_back({n.fd(), POLLIN, 0});
    if (poll(waits.data(), waits.size(), until.milliseconds()) < 0 && errno != EINTR) fail_with_errno("poll");
    for (std::size_t i = 0; i < newcomers_.size();) {
      Newcomer& one = newcomers_[i];
      const Newcomer::State state = one.advance(own_);
      if (state == Newcomer::State::waiting && Clock::now() < one.deadline()) {
        ++i;
        continue;
      }
      if (state == Newcomer::State::whole) {
        const Claim claim = one.claim();
        const Admission verdict = judge(claim);
        std::optional<Socket> socket = one.answer(verdict, own_);
        newcomers_.erase(newcomers_.begin() + static_cast<std::ptrdiff_t>(i));
        if (verdict == Admission::accepted && socket) return Guest{claim, std::move(*socket)};
        if (verdict != Admission::accepted)
          refused_ = explain(verdict, claim, fmt::format("rank {}", own_.claim.rank));
        continue;
      }
      ++strangers_;
      newcomers_.erase(newcomers_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    accept_some();
  } while (!until.over());
  return std::nullopt;
}

// A few from each listener, so that those who are here are heard between.
void Reception::accept_some() {
  for (const Socket& listener : listeners_)
    for (std::size_t n = 0; n < kAcceptedAtOnce; ++n) {
      Socket s = accept_from(listener);
      if (s.fd() < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) break;
        if (newcomers_.empty()) fail_with_errno("accept (see ulimit -n)");
        ++strangers_;
        newcomers_.pop_front();
        continue;
      }
      if (newcomers_.size() == kMostNewcomers) {
        ++strangers_;
        newcomers_.pop_front();
      }
      newcomers_.emplace_back(std::move(s), Clock::now() + kToProve);
    }
}

std::string Reception::dropped() const {
  std::string text;
  if (strangers_ > 0)
    text += fmt::format("; {} connection{} without proof of the job's secret {} dropped", strangers_,
                        strangers_ == 1 ? "" : "s", strangers_ == 1 ? "was" : "were");
  if (!refused_.empty()) text += fmt::format("; not accepted: {}", refused_);
  return text;
}

}  // namespace sextant
