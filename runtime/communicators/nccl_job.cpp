#include "runtime/communicators/nccl_job.hpp"

#include <chrono>

namespace sextant {
namespace {

constexpr std::chrono::milliseconds kPoll{100};

}  // namespace

NcclJob::~NcclJob() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  watch_.join();
}

void NcclJob::add(ncclComm* comm) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(comm);
}

bool NcclJob::remove(ncclComm* comm) {
  const std::lock_guard lock(mutex_);
  return std::erase(comms_, comm) > 0;
}

void NcclJob::require_running() {
  if (!aborted_) return;
  const std::lock_guard lock(mutex_);
  throw Aborted(reason_);
}

void NcclJob::abort(std::string_view reason) noexcept {
  std::vector<ncclComm*> comms;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    reason_ = reason;
    aborted_ = true;
    comms.swap(comms_);
  }
  for (ncclComm* comm : comms) library_.abort(comm);
}

void NcclJob::tell(std::function<void(const std::string& what)> listener) {
  const std::lock_guard lock(telling_);
  listener_ = std::move(listener);
}

void NcclJob::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_ && !aborted_) {
    wake_.wait_for(lock, kPoll);
    for (ncclComm* comm : comms_) {
      const std::string error = library_.error(comm);
      if (error.empty()) continue;
      lock.unlock();
      const std::lock_guard telling(telling_);
      if (listener_) listener_(error);
      return;
    }
  }
}

}  // namespace sextant
