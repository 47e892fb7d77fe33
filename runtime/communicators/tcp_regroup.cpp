// How processes that are left of a job agree on who they are (tcp_process.hpp).
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>

#include "core/base/error.hpp"
#include "runtime/communicators/tcp_process.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{100};
constexpr double kLeaderPatience = 2;  // that of the one who decides runs out first

std::vector<int> ranks_of(const std::vector<std::byte>& payload) {
  std::vector<int> ranks(payload.size() / sizeof(std::int32_t));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::int32_t rank = 0;
    std::memcpy(&rank, payload.data() + i * sizeof rank, sizeof rank);
    ranks[i] = rank;
  }
  return ranks;
}

bool holds(const std::vector<int>& ranks, int rank) { return std::ranges::find(ranks, rank) != ranks.end(); }

}  // namespace

void TcpProcess::break_epoch(std::string why) {
  if (!outlives_ || broken_ || aborted_) return;
  broken_by_ = std::move(why);
  broken_since_ = Clock::now();
  broken_ = true;
  arrived_.notify_all();
}

bool TcpProcess::is_left(int member) const {
  if (member == rank_) return true;
  const Peer& p = *peers_[static_cast<std::size_t>(member)];
  return !p.gone && !p.said_goodbye && !given_up_.contains(member);
}

std::vector<int> TcpProcess::gone() const {
  std::vector<int> ranks;
  for (const int member : members_)
    if (!is_left(member)) ranks.push_back(member);
  return ranks;
}

std::vector<int> TcpProcess::not_here() const {
  std::vector<int> ranks;
  for (const int member : members_)
    if (member != rank_ && is_left(member) && !here_.contains(member)) ranks.push_back(member);
  return ranks;
}

// One that was sent before its sender knew of this epoch says nothing new, unless a member of it is gone.
bool TcpProcess::is_news(const Here& here) const {
  return here.epoch >= epoch_ ||
         std::ranges::any_of(here.gone, [&](int rank) { return holds(members_, rank); });
}

// On the reading thread.
void TcpProcess::heard(int peer, const Message& message) {
  if (!outlives_) return;
  std::vector<int> ranks = ranks_of(message.payload);
  const bool known = std::ranges::all_of(ranks, [&](int rank) { return rank >= 0 && rank < size(); });
  if (!known || !holds(members_, peer)) return;
  if (message.kind == MessageKind::members) {
    if (message.channel > epoch_ && holds(ranks, rank_))
      decision_ = {peer, message.channel, std::move(ranks)};
  } else if (message.kind == MessageKind::left_out) {
    if (aborted_) return;
    reason_ = "the other ranks have given this one up, which was silent, and go on without it";
    aborted_ = true;
  } else {
    Here here{message.channel, std::move(ranks)};
    if (!is_news(here)) return;
    break_epoch(fmt::format("rank {} has met the loss of another", peer));
    here_[peer] = std::move(here);
  }
}

bool TcpProcess::lose(const std::vector<int>& ranks, std::string_view why) {
  if (!outlives_) return false;
  const std::lock_guard lock(mutex_);
  given_up_.insert(ranks.begin(), ranks.end());
  break_epoch(std::string(why));
  return true;
}

void TcpProcess::drop(int peer) {
  ::shutdown(peers_[static_cast<std::size_t>(peer)]->socket.fd(), SHUT_RDWR);
}

void TcpProcess::say(int peer, MessageKind kind, std::uint64_t epoch, const std::vector<int>& ranks) {
  const std::vector<std::int32_t> payload(ranks.begin(), ranks.end());
  try {
    write(peer, kind, epoch, payload.data(), std::ssize(payload) * std::int64_t{sizeof(std::int32_t)});
  } catch (const BackendError&) {  // gone, or stuck in the middle of a message
    drop(peer);
  }
}

void TcpProcess::say_to_left(MessageKind kind, std::uint64_t epoch, const std::vector<int>& ranks) {
  std::vector<int> left;
  {
    const std::lock_guard lock(mutex_);
    for (const int member : members_)
      if (member != rank_ && is_left(member)) left.push_back(member);
  }
  for (const int peer : left) say(peer, kind, epoch, ranks);
}

TcpProcess::Decision TcpProcess::decide() const {
  Decision next{rank_, epoch_, {}};
  int silent = 0;
  for (const int member : members_) {
    if (is_left(member)) {
      next.members.push_back(member);
      if (const auto here = here_.find(member); here != here_.end())
        next.epoch = std::max(next.epoch, here->second.epoch);
    } else {
      const Peer& p = *peers_[static_cast<std::size_t>(member)];
      silent += !(p.said_goodbye || (p.gone && p.closed));
    }
  }
  if (silent >= std::ssize(next.members))
    throw Aborted(fmt::format(
        "{} ranks are silent and {} are left: those that are silent may go on, so these do not\n  --resume "
        "--adapt resumes from the newest checkpoint with the ranks that are started",
        silent, next.members.size()));
  ++next.epoch;
  return next;
}

void TcpProcess::begin(const Decision& next) {
  for (const int member : members_)
    if (!holds(next.members, member)) given_up_.insert(member);
  members_ = next.members;
  epoch_ = next.epoch;
  broken_ = false;
  // Whoever has met the loss of a member before it heard of this epoch says it once.
  std::erase_if(here_, [&](const auto& one) { return !is_news(one.second); });
  decision_.reset();
  for (auto& [of, queue] : inbox_)
    if (epoch_of(of.first) < epoch_) queue.clear();
  for (const int member : members_)
    if (!is_left(member)) break_epoch(fmt::format("rank {} has gone without a word", member));
  for (const auto& [peer, here] : here_)
    break_epoch(fmt::format("rank {} has met the loss of another", peer));
  arrived_.notify_all();
}

void TcpProcess::regroup(Seconds patience) {
  const auto began = Clock::now();
  std::optional<std::vector<int>> told;
  Decision next;
  std::vector<int> others;
  std::unique_lock lock(mutex_);
  break_epoch("this rank has left what was under way");
  while (true) {
    if (aborted_) throw Aborted(reason_);
    for (const auto& [peer, here] : here_)  // what a member has lost, all have; but not each other
      if (is_left(peer)) {
        if (holds(here.gone, rank_)) given_up_.insert(peer);
        for (const int rank : here.gone)
          if (rank != rank_) given_up_.insert(rank);
      }
    const std::vector<int> lost = gone();
    if (told != lost) {
      told = lost;
      lock.unlock();
      say_to_left(MessageKind::here, epoch_, lost);
      lock.lock();
      continue;
    }
    if (decision_ && is_left(decision_->from)) {
      next = *decision_;
      break;
    }
    const int leader = *std::ranges::find_if(members_, [&](int member) { return is_left(member); });
    const std::vector<int> missing = not_here();
    if (leader == rank_ && missing.empty()) {
      next = decide();
      break;
    }
    const double waited = std::chrono::duration<double>(Clock::now() - began).count();
    if (leader == rank_ && waited > patience.v) given_up_.insert(missing.begin(), missing.end());
    if (leader != rank_ && waited > patience.v * kLeaderPatience) given_up_.insert(leader);
    arrived_.wait_for(lock, kLook);
  }
  for (const int member : members_)
    if (member != rank_ && !holds(next.members, member) && !peers_[static_cast<std::size_t>(member)]->gone)
      others.push_back(member);
  begin(next);
  lock.unlock();
  for (const int other : others) {
    say(other, MessageKind::left_out, 0, {});
    drop(other);
  }
  if (next.from == rank_)
    for (const int member : next.members)
      if (member != rank_) say(member, MessageKind::members, next.epoch, next.members);
}

}  // namespace sextant
