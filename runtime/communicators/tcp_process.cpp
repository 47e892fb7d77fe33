#include "runtime/communicators/tcp_process.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include "core/base/error.hpp"
#include "runtime/communicators/tcp_meeting.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kReadTick_ms = 100;  // how often the reader looks whether the job is over
constexpr std::chrono::seconds kLinger{10}, kLingerAborted{2};  // for others that are not done yet
// Data waits as long as its receiver takes; the word that ends a job and questions who is there do not.
constexpr std::chrono::seconds kWordsSent{2}, kAbortWaits{2}, kQuestionWaits{1}, kReasonWaits{2};
constexpr std::chrono::seconds kGoneIsSeen{30};  // by the reading thread, after a send has met it
constexpr std::chrono::seconds kRestOfEpoch{5};  // for messages under way when an epoch ends
constexpr std::chrono::seconds kSlept{2};  // a busy machine does not keep the reading thread waiting as long
constexpr std::chrono::seconds kAfterSleep{60};  // in which it finds what has happened meanwhile
constexpr std::size_t kMostReason = 1000;        // characters

// Goes on while this process or its machine sleeps.
std::chrono::nanoseconds since_boot() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

std::string_view text_of(const std::vector<std::byte>& payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

}  // namespace

TcpProcess::TcpProcess(const TcpWorld& world) : outlives_(world.outlives_ranks) {
  Met met = meet(world);
  rank_ = met.rank;
  joined_ = met.joined;
  for (Socket& socket : met.sockets) {
    members_.push_back(static_cast<int>(peers_.size()));
    auto& peer = peers_.emplace_back();
    if (socket.fd() < 0) continue;  // this process
    peer = std::make_unique<Peer>();
    peer->socket = std::move(socket);
  }
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
      write(peer, aborted ? MessageKind::abort : MessageKind::goodbye, 0, reason.data(), std::ssize(reason));
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

void TcpProcess::require_running(std::uint64_t channel) const {
  if (aborted_) throw Aborted(reason_);
  if (over(channel)) throw RankLost(broken_by_);
}

std::vector<int> TcpProcess::members() const {
  const std::lock_guard lock(mutex_);
  return members_;
}
std::uint64_t TcpProcess::epoch() const { return epoch_; }

void TcpProcess::write(int peer, MessageKind kind, std::uint64_t channel, const void* data,
                       std::int64_t bytes) {
  Peer& p = *peers_[static_cast<std::size_t>(peer)];
  const bool is_data = kind == MessageKind::data;
  std::unique_lock lock(p.sending, std::defer_lock);
  const bool of_regroup =
      kind == MessageKind::here || kind == MessageKind::members || kind == MessageKind::left_out;
  // The word that ends the job does not wait for a message that may be stuck: its receiver then sees the connection end. Nor
  // does the question who is there. ThreadSanitizer does not see waits by the steady clock (pthread_mutex_clocklock).
  if (is_data || of_regroup || kind == MessageKind::goodbye)
    lock.lock();
  else if (!lock.try_lock_until(std::chrono::system_clock::now() +
                                (kind == MessageKind::abort ? kAbortWaits : kQuestionWaits)))
    return;
  const auto give_up = Clock::now() + kWordsSent;
  // A message of an epoch that has ended is sent to its end all the same, as others follow it; unless that is not taken in.
  const auto go_on = [&] {
    if (!is_data) return Clock::now() < give_up;
    if (aborted_) return false;
    if (!broken_) return true;
    const std::lock_guard since(mutex_);
    return Clock::now() < broken_since_ + kRestOfEpoch;
  };
  const Sent sent =
      send_message(p.socket.fd(), {.kind = kind, .channel = channel, .bytes = bytes}, data, go_on);
  if (sent == Sent::all) return;
  const int error = errno;
  if (sent == Sent::stopped) ::shutdown(p.socket.fd(), broken_ ? SHUT_RDWR : SHUT_WR);
  std::unique_lock reason(mutex_);
  if (is_data && sent == Sent::ended)  // what the other said before it ended is still being read
    arrived_.wait_for(reason, outlives_ ? kGoneIsSeen : kReasonWaits, [&] { return aborted_ || p.gone; });
  if (is_data || sent == Sent::stopped) require_running(is_data ? channel : epoch_ * kChannelsOfEpoch);
  throw BackendError(sent == Sent::stopped ? fmt::format("rank {} takes in nothing", peer)
                                           : fmt::format("rank {} has gone: {}", peer, std::strerror(error)));
}

void TcpProcess::send(std::uint64_t channel, int peer, const void* data, std::int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    require_running(channel);
  }
  write(peer, MessageKind::data, channel, data, bytes);
}

void TcpProcess::recv(std::uint64_t channel, int peer, void* data, std::int64_t bytes) {
  std::unique_lock lock(mutex_);
  auto& queue = inbox_[{channel, peer}];
  const auto waiting = awaited_.insert(peer);
  const Peer& other = *peers_[static_cast<std::size_t>(peer)];  // what it has sent comes before its goodbye
  arrived_.wait(lock, [&] { return over(channel) || !queue.empty() || other.gone || other.said_goodbye; });
  awaited_.erase(waiting);
  require_running(channel);
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

Stalls TcpProcess::stalls() {
  {
    const std::lock_guard lock(mutex_);
    answers_.clear();
  }
  const std::vector<int> asked = members();
  for (const int peer : asked) try {
      if (peer != rank_) write(peer, MessageKind::call, 0, nullptr, 0);
    } catch (const BackendError&) {  // it takes in nothing, and gives no answer
    }
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, std::chrono::duration<double>(kRollCall.v),
                    [&] { return aborted_ || broken_ || answers_.size() + 1 == asked.size(); });
  const auto place = [&](int rank) {
    return static_cast<int>(std::ranges::find(asked, rank) - asked.begin());
  };
  Answers answers;
  answers_.insert_or_assign(rank_, Answer{awaited(), ""});
  for (const auto& [rank, answer] : answers_) {
    Answer& named = answers[place(rank)];
    named.state = answer.state;
    for (const int other : answer.awaits) named.awaits.push_back(place(other));
  }
  Stalls found = stalls_from(place(rank_), static_cast<int>(asked.size()), answers);
  found.over = aborted_ || broken_;
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
    const std::string text(reason.substr(0, kMostReason));
    end_with(text);
    for (int peer = 0; peer < size(); ++peer) try {
        if (peers_[static_cast<std::size_t>(peer)])
          write(peer, MessageKind::abort, 0, text.data(), static_cast<std::int64_t>(text.size()));
      } catch (const BackendError&) {  // gone: it needs no telling
      }
  } catch (...) {  // no memory for words: the connections end with the process, which says as much
    aborted_ = true;
    arrived_.notify_all();
  }
}

void TcpProcess::abort_in(std::uint64_t epoch, std::string_view reason) noexcept {
  if (!outlives_ || (epoch == epoch_ && !broken_)) abort(reason);
}

void TcpProcess::read_all() {
  std::vector<pollfd> waits;
  std::vector<int> ranks;
  auto looked = since_boot();
  while (!closing_) {
    waits.clear();
    ranks.clear();
    for (int peer = 0; peer < size(); ++peer) {
      const auto& p = peers_[static_cast<std::size_t>(peer)];
      if (!p || p->gone) continue;  // only this thread writes it
      waits.push_back({p->socket.fd(), POLLIN, 0});
      ranks.push_back(peer);
    }
    const int ready = poll(waits.data(), waits.size(), kReadTick_ms);
    const auto now = since_boot();
    if (now - std::exchange(looked, now) > kSlept) woke_ = now;
    if (ready <= 0) continue;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      const int peer = ranks[i];
      Peer& p = *peers_[static_cast<std::size_t>(peer)];
      if (waits[i].revents == 0) continue;
      try {
        if (p.inflow.take_in(p.socket.fd(), [&](Message&& m) { handle(peer, std::move(m)); })) continue;
      } catch (const std::bad_alloc&) {
        abort(fmt::format("no memory for a message of rank {}", peer));
      }
      ended(peer);
    }
  }
}

void TcpProcess::ended(int peer) {
  Peer& p = *peers_[static_cast<std::size_t>(peer)];
  const std::string why = fmt::format("rank {} has gone without a word", peer);
  if (const std::string& fault = p.inflow.fault(); !fault.empty())
    abort(fmt::format("rank {}: {}", peer, fault));
  if (!p.said_goodbye && !outlives_) abort(why);
  const std::lock_guard lock(mutex_);
  // Who was stopped, or on a machine that slept, may have been given up: that others have closed their ends says nothing then.
  p.closed = p.inflow.closed() && !(woke_ && since_boot() - *woke_ < kAfterSleep);
  p.gone = true;
  if (!p.said_goodbye && std::ranges::find(members_, peer) != members_.end()) break_epoch(why);
  arrived_.notify_all();
}

void TcpProcess::answer_call(int peer) {
  std::string answer;
  {
    const std::lock_guard lock(mutex_);
    answer = packed({awaited(), state_ ? state_() : ""});
  }
  try {
    write(peer, MessageKind::answer, 0, answer.data(), std::ssize(answer));
  } catch (const std::exception&) {  // it is gone, or takes in nothing: it will not ask again
  }
}

void TcpProcess::handle(int peer, Message message) {
  if (message.kind == MessageKind::call) return answer_call(peer);
  // The reason comes first: who waits for the peer is told it, not that it is gone.
  if (message.kind == MessageKind::abort)
    end_with(std::string(text_of(message.payload).substr(0, kMostReason)));
  std::optional<Answer> answer;
  if (message.kind == MessageKind::answer) answer = unpacked(text_of(message.payload));
  const std::lock_guard lock(mutex_);
  switch (message.kind) {
    case MessageKind::answer:
      answers_.insert_or_assign(peer, std::move(*answer));
      break;
    case MessageKind::data:
      if (epoch_of(message.channel) >= epoch_)  // nobody reads what an epoch has left behind
        inbox_[{message.channel, peer}].push_back(std::move(message.payload));
      break;
    case MessageKind::here:
    case MessageKind::members:
    case MessageKind::left_out:
      heard(peer, message);
      break;
    case MessageKind::abort:
    case MessageKind::goodbye:
    case MessageKind::call:
      peers_[static_cast<std::size_t>(peer)]->said_goodbye = true;
  }
  arrived_.notify_all();
}

}  // namespace sextant
