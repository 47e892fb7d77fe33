#include "runtime/communicators/tcp_entrance.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/error.hpp"
#include "runtime/communicators/tcp_reception.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Seconds kAsked{1};

TcpWorld as_rank_0(TcpWorld job) {
  job.rank = 0;
  return job;
}

// Of who listens there: heard by a rank 0 of this job alone.
void ask_to_give_way(TcpWorld job) {
  job.generation = std::max(job.generation, 1);
  try {
    is_let_in(job, Member(job), kAsked);
  } catch (const BackendError&) {  // it is of another job
  }
}

}  // namespace

TcpEntrance::TcpEntrance(const TcpWorld& job, std::set<int> here, int most)
    : own_(as_rank_0(job)), most_(most), here_(std::move(here)) {
  std::vector<Socket> listeners;
  try {
    listeners = listeners_of_job(job.address, job.port);
  } catch (const BackendError&) {
    ask_to_give_way(job);
    throw;
  }
  if (listeners.empty()) throw BackendError(job.address + " is no address of this machine");
  thread_ =
      std::thread([this, listeners = std::move(listeners)]() mutable { receive(std::move(listeners)); });
}

TcpEntrance::~TcpEntrance() {
  close();
  for (const auto& [came_as, socket] : guests_)
    send_at_once(socket.fd(), Standing{.kind = Standing::Kind::over});
}

void TcpEntrance::set_here(std::set<int> here) {
  const std::lock_guard lock(mutex_);
  here_ = std::move(here);
}

void TcpEntrance::close() {
  closing_ = true;
  if (thread_.joinable()) thread_.join();
}

void TcpEntrance::receive(std::vector<Socket> listeners) {
  Reception reception(std::move(listeners), own_);
  while (!closing_) try {
      auto guest = reception.next([this](const Claim& claim) { return judge(claim); },
                                  {Clock::time_point::max(), &closing_});
      if (!guest || !send_at_once(guest->socket.fd(), Standing{.kind = Standing::Kind::wait})) continue;
      const std::lock_guard lock(mutex_);
      guests_.insert_or_assign(guest->claim.rank, std::move(guest->socket));
    } catch (const BackendError&) {  // no descriptors: the job needs none of these
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
}

Admission TcpEntrance::judge(const Claim& claim) {
  if (claim.job != own_.claim.job) return Admission::other_job;
  if (claim.generation != 0) return Admission::not_now;
  if (claim.settings != own_.claim.settings) return Admission::other_settings;
  if (claim.rank < 0 || claim.rank >= most_) return Admission::no_such_rank;
  const std::lock_guard lock(mutex_);
  forget_gone();
  return here_.contains(claim.rank) || guests_.contains(claim.rank) ? Admission::came_twice
                                                                    : Admission::accepted;
}

void TcpEntrance::forget_gone() {
  std::erase_if(guests_, [](const auto& guest) { return !still_stands(guest.second); });
}

std::set<int> TcpEntrance::waiting() {
  const std::lock_guard lock(mutex_);
  forget_gone();
  std::set<int> ranks;
  for (const auto& [came_as, socket] : guests_) ranks.insert(came_as);
  return ranks;
}

void TcpEntrance::invite(const std::map<int, int>& rank_of, int ranks, int generation) {
  close();
  for (const auto& [came_as, socket] : guests_) {
    const auto place = rank_of.find(came_as);
    if (place == rank_of.end())
      send_at_once(socket.fd(), Standing{.kind = Standing::Kind::again});
    else
      send_at_once(socket.fd(), Standing{Standing::Kind::place, place->second, ranks,
                                         static_cast<std::uint32_t>(generation)});
  }
  guests_.clear();
}

}  // namespace sextant
