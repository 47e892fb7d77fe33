// The NCCL communicators of a process: none is used while it is taken away, and a thread polls them for errors that NCCL
// finds on its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/communicators/communicator.hpp"

struct ncclComm;  // what an ncclComm_t points to

namespace sextant {

class NcclJob {
 public:
  struct Library {
    std::string (*error)(ncclComm*);  // that NCCL has found on its own; empty: none
    void (*abort)(ncclComm*);
  };
  explicit NcclJob(const Library& library) : library_(library), watch_([this] { watch(); }) {}
  ~NcclJob();
  NcclJob(const NcclJob&) = delete;

  void add(ncclComm*);
  // Whether it is still there to be destroyed; abort() leaves none.
  bool remove(ncclComm*);
  // Throws Aborted after an abort.
  void require_running();
  // Calls NCCL with a communicator that no abort() takes away meanwhile; throws Aborted after one. Nothing blocks in f.
  template <class F>
  auto call(const F& f) {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Aborted(reason_);
    return f();
  }
  void abort(std::string_view reason) noexcept;

  // Who hears, once, of an error that NCCL found on its own; nobody, when empty.
  void tell(std::function<void(const std::string& what)> listener);

 private:
  void watch();

  const Library library_;
  std::mutex mutex_, telling_;
  std::function<void(const std::string&)> listener_;
  std::condition_variable wake_;
  std::vector<ncclComm*> comms_;
  std::atomic<bool> aborted_{false};
  std::string reason_;
  bool ending_ = false;
  std::thread watch_;  // last: it uses the others
};

}  // namespace sextant
