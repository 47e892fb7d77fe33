// GPUs of several processes through NCCL. What is about the host's memory (a call without a stream) goes to the
// host communicator underneath, which also carries every group's unique id: so NCCL starts however that one was
// started (mpirun, srun --mpi=pmix).
//
// Every communicator is made non-blocking and settled by polling, so that a peer that never comes can be given
// up. One launch order: a rank enqueues its collectives from one thread in graph order, which is the same on all
// ranks; NCCL_LAUNCH_ORDER_IMPLICIT makes NCCL (2.26 and later) keep it between communicators.
//
// abort() ends the host's side, then every communicator of the process.
//
// Sums are NCCL's: the same from run to run for one algorithm and size, but not in rank order.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include "core/base/error.hpp"
#include "kernels/cuda/cuda_stream.hpp"
#include "kernels/cuda/library.hpp"
#include "runtime/communicators/collective_args.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/communicators/nccl_job.hpp"

namespace sextant {
namespace {

using cuda::check;

constexpr std::chrono::minutes kConnectPatience{10};  // for all ranks to connect
constexpr int kEager = 1000;    // times that NCCL is asked at once whether it has taken a call
constexpr int kOldest = 21400;  // 2.14: the first with non-blocking communicators

struct Nccl {
  cuda::Library library{"libnccl.so.2"};
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  int version = 0;

  Nccl() {
    if (!library.found()) return;
    library.get(get_version, "ncclGetVersion");
    if (get_version(&version) != ncclSuccess || version < kOldest) return;
    library.get(error_string, "ncclGetErrorString");
    library.get(get_unique_id, "ncclGetUniqueId");
    library.get(init, "ncclCommInitRankConfig");
    library.get(async_error, "ncclCommGetAsyncError");
    library.get(finalize, "ncclCommFinalize");
    library.get(destroy, "ncclCommDestroy");
    library.get(abort, "ncclCommAbort");
    library.get(group_start, "ncclGroupStart");
    library.get(group_end, "ncclGroupEnd");
    library.get(all_reduce, "ncclAllReduce");
    library.get(reduce_scatter, "ncclReduceScatter");
    library.get(reduce, "ncclReduce");
    library.get(all_gather, "ncclAllGather");
    library.get(broadcast, "ncclBroadcast");
    library.get(send, "ncclSend");
    library.get(recv, "ncclRecv");
  }
};

const Nccl& nccl() {
  static const Nccl functions;
  return functions;
}

ncclDataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp16:
      return ncclFloat16;
    case Dtype::bf16:
      return ncclBfloat16;
    case Dtype::tf32:
    case Dtype::fp32:
      return ncclFloat32;
    case Dtype::fp64:
      return ncclFloat64;
    case Dtype::fp8:
      break;
  }
  throw BackendError(fmt::format("NCCL does not sum {}", name(dtype)));
}

// What is under way on a communicator, or has gone wrong with it.
ncclResult_t status_of(ncclComm_t comm) {
  ncclResult_t status = ncclSuccess;
  const ncclResult_t asked = nccl().async_error(comm, &status);
  return asked == ncclSuccess ? status : asked;
}

constexpr NcclJob::Library kJobLibrary = {.error = [](ncclComm_t comm) -> std::string {
                                            const ncclResult_t status = status_of(comm);
                                            if (status == ncclSuccess || status == ncclInProgress) return "";
                                            return fmt::format("NCCL: {}", nccl().error_string(status));
                                          },
                                          .abort = [](ncclComm_t comm) { nccl().abort(comm); }};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclJob> job, std::unique_ptr<Communicator> host, int ordinal)
      : job_(std::move(job)), host_(std::move(host)), ordinal_(ordinal) {
    check(cudaSetDevice(ordinal_), "cudaSetDevice");
    ncclUniqueId id{};
    if (host_->rank() == 0) settle(nccl().get_unique_id(&id), "ncclGetUniqueId");
    host_->broadcast(&id, sizeof id, 0, {});
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t begun = nccl().init(&comm_, host_->size(), id, host_->rank(), &config);
    if (comm_) job_->add(comm_);
    try {
      require_all_began(begun);
      settle(begun, "ncclCommInitRankConfig", std::chrono::steady_clock::now() + kConnectPatience);
    } catch (...) {
      if (comm_ && job_->remove(comm_)) nccl().abort(comm_);
      throw;
    }
  }
  ~NcclCommunicator() override {
    if (listens_) job_->tell({});
    if (!comm_ || !job_->remove(comm_)) return;
    try {
      settle(nccl().finalize(comm_), "ncclCommFinalize");
      nccl().destroy(comm_);
    } catch (const BackendError&) {
      nccl().abort(comm_);
    }
  }

  // The run ends on all ranks when NCCL finds an error on its own.
  void listen() {
    listens_ = true;
    job_->tell([this](const std::string& what) { abort(what); });
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  void all_reduce(const void* in, void* out, std::int64_t count, Dtype dtype, Reduction reduction,
                  NativeStream stream) override {
    if (!stream.handle) return host_->all_reduce(in, out, count, dtype, reduction, stream);
    check_all_reduce(in, out, count, dtype);
    if (count > 0)
      call("ncclAllReduce", [&] {
        return nccl().all_reduce(in, out, static_cast<std::size_t>(count), type_of(dtype), op_of(reduction),
                                 comm_, raw(stream));
      });
  }

  // Shards of one size in one call; of several sizes as a reduction to every rank, launched together.
  void reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, Dtype dtype,
                      Reduction reduction, NativeStream stream) override {
    if (!stream.handle) return host_->reduce_scatter(in, out, counts, dtype, reduction, stream);
    check_reduce_scatter(in, out, counts, dtype, rank(), size());
    if (const auto count = common(counts)) {
      if (*count > 0)
        call("ncclReduceScatter", [&] {
          return nccl().reduce_scatter(in, out, static_cast<std::size_t>(*count), type_of(dtype),
                                       op_of(reduction), comm_, raw(stream));
        });
      return;
    }
    together([&] {
      const auto* from = static_cast<const std::byte*>(in);
      for (int r = 0; r < size(); ++r) {
        const std::int64_t n = counts[static_cast<std::size_t>(r)];
        if (n > 0)
          require(nccl().reduce(from, r == rank() ? out : nullptr, static_cast<std::size_t>(n),
                                type_of(dtype), op_of(reduction), r, comm_, raw(stream)),
                  "ncclReduce");
        from += n * size_bytes(dtype);
      }
    });
  }

  void all_gather(const void* in, void* out, std::span<const std::int64_t> bytes,
                  NativeStream stream) override {
    if (!stream.handle) return host_->all_gather(in, out, bytes, stream);
    check_all_gather(in, out, bytes, rank(), size());
    if (const auto n = common(bytes)) {
      if (*n > 0)
        call("ncclAllGather", [&] {
          return nccl().all_gather(in, out, static_cast<std::size_t>(*n), ncclUint8, comm_, raw(stream));
        });
      return;
    }
    together([&] {
      auto* to = static_cast<std::byte*>(out);
      for (int r = 0; r < size(); ++r) {
        const std::int64_t n = bytes[static_cast<std::size_t>(r)];
        if (n > 0)
          require(nccl().broadcast(r == rank() ? in : to, to, static_cast<std::size_t>(n), ncclUint8, r,
                                   comm_, raw(stream)),
                  "ncclBroadcast");
        to += n;
      }
    });
  }

  void broadcast(void* data, std::int64_t bytes, int root, NativeStream stream) override {
    if (!stream.handle) return host_->broadcast(data, bytes, root, stream);
    SEXTANT_CHECK(root >= 0 && root < size(), "the root is a rank of the group");
    if (bytes > 0)
      call("ncclBroadcast", [&] {
        return nccl().broadcast(data, data, static_cast<std::size_t>(bytes), ncclUint8, root, comm_,
                                raw(stream));
      });
  }

  void send(const void* data, std::int64_t bytes, int peer, NativeStream stream) override {
    if (!stream.handle) return host_->send(data, bytes, peer, stream);
    check_peer(peer, rank(), size());
    if (bytes > 0)
      call("ncclSend", [&] {
        return nccl().send(data, static_cast<std::size_t>(bytes), ncclUint8, peer, comm_, raw(stream));
      });
  }
  void recv(void* data, std::int64_t bytes, int peer, NativeStream stream) override {
    if (!stream.handle) return host_->recv(data, bytes, peer, stream);
    check_peer(peer, rank(), size());
    if (bytes > 0)
      call("ncclRecv", [&] {
        return nccl().recv(data, static_cast<std::size_t>(bytes), ncclUint8, peer, comm_, raw(stream));
      });
  }

  void barrier(NativeStream stream) override {
    if (!stream.handle) return host_->barrier(stream);
    void* word = cuda::scratch(cuda::stream_of(stream), sizeof(float));
    call("ncclAllReduce",
         [&] { return nccl().all_reduce(word, word, 1, ncclFloat32, ncclSum, comm_, raw(stream)); });
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    return std::make_unique<NcclCommunicator>(job_, host_->group(ranks), ordinal_);
  }

  // The host's messages: a process that is stopped is found, one that waits for NCCL waits for nobody.
  Stalls stalls() override { return host_->stalls(); }
  void answer_with(const std::function<std::string()>& state) override { host_->answer_with(state); }

  void abort(std::string_view reason) noexcept override {
    host_->abort(reason);
    job_->abort(reason);
  }

 private:
  static cudaStream_t raw(NativeStream stream) { return cuda::stream_of(stream).stream; }
  static ncclRedOp_t op_of(Reduction reduction) { return reduction == Reduction::max ? ncclMax : ncclSum; }
  static std::optional<std::int64_t> common(std::span<const std::int64_t> sizes) {
    const bool one = std::ranges::all_of(sizes, [&](std::int64_t n) { return n == sizes.front(); });
    return one ? std::optional(sizes.front()) : std::nullopt;
  }

  void require(ncclResult_t status, const char* call) const {
    if (status == ncclSuccess || status == ncclInProgress) return;
    job_->require_running();  // a consequence of an abort is told as such
    throw BackendError(fmt::format("{}: {}", call, nccl().error_string(status)));
  }

  // A rank whose NCCL refuses at once never connects, and the others would wait for it.
  void require_all_began(ncclResult_t begun) const {
    double refused = begun != ncclSuccess && begun != ncclInProgress;
    const bool here = refused > 0;
    host_->all_reduce(&refused, &refused, 1, Dtype::fp64, Reduction::max, {});
    if (refused > 0 && !here) throw BackendError("ncclCommInitRankConfig failed on another rank");
    require(begun, "ncclCommInitRankConfig");
  }

  // Until NCCL has taken the call; the stream carries it out later.
  using Deadline = std::chrono::steady_clock::time_point;
  void settle(ncclResult_t status, const char* call, Deadline deadline = Deadline::max()) const {
    require(status, call);
    for (int asked = 0; status == ncclInProgress; ++asked) {
      if (asked < kEager)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      status = job_->call([&] { return status_of(comm_); });
      require(status, call);
      if (status == ncclInProgress && std::chrono::steady_clock::now() > deadline)
        throw BackendError(fmt::format("{}: not all of {} ranks came within {} minutes", call, size(),
                                       kConnectPatience.count()));
    }
  }

  template <class F>
  void call(const char* name, F f) const {
    settle(job_->call(std::move(f)), name);
  }
  template <class Calls>
  void together(Calls calls) const {
    call("ncclGroupEnd", [&] {
      require(nccl().group_start(), "ncclGroupStart");
      calls();
      return nccl().group_end();
    });
  }

  std::shared_ptr<NcclJob> job_;
  std::unique_ptr<Communicator> host_;
  int ordinal_ = 0;
  ncclComm_t comm_ = nullptr;
  bool listens_ = false;
};

}  // namespace

std::string nccl_version(std::string& why_none) {
  const Nccl& library = nccl();
  if (!library.library.found()) {
    why_none = library.library.why_not();
    return "";
  }
  std::string version = fmt::format("NCCL {}.{}.{}", library.version / 10000, library.version / 100 % 100,
                                    library.version % 100);
  if (library.version >= kOldest) return version;
  why_none = version + " is too old: 2.14 or later is needed";
  return "";
}

std::unique_ptr<Communicator> connect_nccl(std::unique_ptr<Communicator> host, int ordinal) {
  std::string why_none;
  if (nccl_version(why_none).empty()) throw BackendError(why_none);
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  auto world =
      std::make_unique<NcclCommunicator>(std::make_shared<NcclJob>(kJobLibrary), std::move(host), ordinal);
  world->listen();
  return world;
}

}  // namespace sextant
