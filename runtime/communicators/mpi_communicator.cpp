// Ranks as MPI processes. Everything is Isend and Irecv of bytes in pieces, polled: MPI makes no progress by
// itself, a blocking call could not be aborted, and MPI's own sums have no stated order and no bf16.
//
// One mutex per process guards all MPI calls (MPI_THREAD_SERIALIZED); waiting happens outside of it, so lanes
// make progress side by side. Polls back off to short sleeps, since ranks may share cores.
//
// abort() tells every other process on a control channel, which all polls read; then the last communicator to
// go ends the job by MPI_Abort with exit code 7, since MPI cannot finalize with operations pending. On the same channel a
// process that finds its run late asks all others whom they wait for; a thread of each answers.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <mpi.h>

#include "core/base/error.hpp"
#include "runtime/communicators/collective_args.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/communicators/message_communicator.hpp"
#include "runtime/communicators/stalls.hpp"

namespace sextant {

namespace {

constexpr std::int64_t kPiece_bytes = std::int64_t{1} << 30;  // MPI counts are int
constexpr int kDataTag = 1, kAbortTag = 2, kCallTag = 3, kAnswerTag = 4;
constexpr std::chrono::milliseconds kListen{20};  // between two looks at the control channel
constexpr std::chrono::seconds kPatience{1};      // for MPI, when all is late
constexpr int kSpins = 200;                       // polls that only yield, before sleeping
constexpr std::chrono::microseconds kNap{50};

void require(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw BackendError(fmt::format("{}: {}", call, std::string_view(text, static_cast<std::size_t>(length))));
}

class MpiCollective;

// MPI of this process, its mutex, and whether the run was aborted.
class MpiProcess {
 public:
  MpiProcess() {
    int provided = MPI_THREAD_SINGLE;
    require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED)
      throw BackendError("this MPI does not support calls from several threads");
    require(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(control_, &rank_);
    MPI_Comm_size(control_, &size_);
    listener_ = std::jthread([this](const std::stop_token& stop) { listen(stop); });
  }
  ~MpiProcess() {
    listener_ = {};
    if (aborted_) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::run_failed));
    MPI_Comm_free(&control_);
    MPI_Finalize();
  }

  std::timed_mutex mutex;                    // held while groups are made, which a stopped rank draws out
  std::set<const MpiCollective*> under_way;  // mutex held

  Stalls stalls();
  void answer_with(const std::function<std::string()>& state) {
    const std::lock_guard lock(mutex);
    state_ = state;
  }

  // Mutex held. Throws when any process has aborted.
  void check_abort() {
    int length = 0;
    if (const int from = waiting(kAbortTag, length); !aborted_ && from >= 0) {
      reason_.resize(static_cast<std::size_t>(length));
      MPI_Recv(reason_.data(), length, MPI_CHAR, from, kAbortTag, control_, MPI_STATUS_IGNORE);
      aborted_ = true;
    }
    if (aborted_) throw Aborted(reason_);
  }

  void abort(std::string_view reason) {
    const std::unique_lock lock(mutex, kPatience);
    if (!lock || aborted_) return;
    aborted_ = true;
    reason_ = reason.substr(0, 1000);  // short enough to be sent eagerly: nobody may be receiving
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) tell(reason_.data(), reason_.size(), MPI_CHAR, peer, kAbortTag);
  }

 private:
  // Mutex held. The rank whose message of this kind has come, and its length in bytes; -1 when none has.
  int waiting(int tag, int& length) const {
    int found = 0;
    MPI_Status status;
    require(MPI_Iprobe(MPI_ANY_SOURCE, tag, control_, &found, &status), "MPI_Iprobe");
    if (!found) return -1;
    MPI_Get_count(&status, MPI_BYTE, &length);
    return status.MPI_SOURCE;
  }
  // Mutex held. `data` stays; short enough to be sent eagerly.
  void tell(const void* data, std::size_t count, MPI_Datatype type, int peer, int tag) {
    MPI_Request request;
    MPI_Isend(data, static_cast<int>(count), type, peer, tag, control_, &request);
    MPI_Request_free(&request);
  }
  void listen(const std::stop_token&);
  std::vector<int> awaited() const;

  MPI_Comm control_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::atomic<bool> aborted_{false};
  std::string reason_;
  std::function<std::string()> state_;
  std::deque<std::string> told_;  // answers given
  Answers answers_;
  std::jthread listener_;  // last
};

// Messages under way; finish() polls until all are through.
class MpiCollective {
 public:
  MpiCollective(MpiProcess& process, MPI_Comm comm) : process_(process), comm_(comm) {
    const std::lock_guard lock(process_.mutex);
    process_.under_way.insert(this);
  }
  ~MpiCollective() {
    const std::lock_guard lock(process_.mutex);
    process_.under_way.erase(this);
    for (auto& request :
         requests_) {  // only after an error: the run is over, and so is the use of the buffers
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }
  MpiCollective(const MpiCollective&) = delete;
  MpiCollective& operator=(const MpiCollective&) = delete;

  void send(const void* data, std::int64_t bytes, int peer) {
    const std::lock_guard lock(process_.mutex);
    in_pieces(bytes, [&](std::int64_t offset, int n) {
      requests_.push_back(MPI_REQUEST_NULL);
      require(MPI_Isend(static_cast<const std::byte*>(data) + offset, n, MPI_BYTE, peer, kDataTag, comm_,
                        &requests_.back()),
              "MPI_Isend");
      expected_.push_back(-1);
      peers_.push_back(peer);
    });
  }
  void recv(void* data, std::int64_t bytes, int peer) {
    const std::lock_guard lock(process_.mutex);
    in_pieces(bytes, [&](std::int64_t offset, int n) {
      requests_.push_back(MPI_REQUEST_NULL);
      require(MPI_Irecv(static_cast<std::byte*>(data) + offset, n, MPI_BYTE, peer, kDataTag, comm_,
                        &requests_.back()),
              "MPI_Irecv");
      expected_.push_back(n);
      peers_.push_back(peer);
    });
  }

  // Mutex held. Adds the ranks of `world` with which a message is not through.
  void add_awaited(MPI_Comm world, std::set<int>& ranks) const {
    MPI_Group own = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
    require(MPI_Comm_group(comm_, &own), "MPI_Comm_group");
    require(MPI_Comm_group(world, &all), "MPI_Comm_group");
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      int through = 0, rank = MPI_UNDEFINED;
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      MPI_Request_get_status(requests_[i], &through, MPI_STATUS_IGNORE);
      MPI_Group_translate_ranks(own, 1, &peers_[i], all, &rank);
      if (!through) ranks.insert(rank);
    }
    MPI_Group_free(&own);
    MPI_Group_free(&all);
  }

  void finish() {
    std::vector<MPI_Status> statuses(requests_.size());
    for (int polls = 0;; ++polls) {
      {
        const std::lock_guard lock(process_.mutex);
        process_.check_abort();
        int done = 0;
        const int code =
            MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses.data());
        if (code == MPI_ERR_IN_STATUS)
          for (const auto& status : statuses)
            if (status.MPI_ERROR != MPI_ERR_PENDING) require(status.MPI_ERROR, "ranks disagree on a message");
        require(code, "MPI_Testall");
        if (done) return check_lengths(statuses);
      }
      if (polls < kSpins)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(kNap);
    }
  }

 private:
  template <class Post>
  static void in_pieces(std::int64_t bytes, Post post) {
    std::int64_t offset = 0;
    do {  // an empty message is a message too
      const auto n = std::min(kPiece_bytes, bytes - offset);
      post(offset, static_cast<int>(n));
      offset += n;
    } while (offset < bytes);
  }
  void check_lengths(const std::vector<MPI_Status>& statuses) const {
    for (std::size_t i = 0; i < statuses.size(); ++i) {
      if (expected_[i] < 0) continue;
      int got = 0;
      MPI_Get_count(&statuses[i], MPI_BYTE, &got);
      if (got != expected_[i])
        throw BackendError(fmt::format("ranks disagree: {} bytes received from rank {}, {} expected", got,
                                       statuses[i].MPI_SOURCE, expected_[i]));
    }
  }

  MpiProcess& process_;
  MPI_Comm comm_;
  std::vector<MPI_Request> requests_;
  std::vector<int> expected_;  // bytes, -1 for a send
  std::vector<int> peers_;     // of comm_
};

// Mutex held.
std::vector<int> MpiProcess::awaited() const {
  std::set<int> ranks;
  for (const MpiCollective* collective : under_way) collective->add_awaited(control_, ranks);
  return {ranks.begin(), ranks.end()};
}

void MpiProcess::listen(const std::stop_token& stop) {
  for (; !stop.stop_requested(); std::this_thread::sleep_for(kListen)) try {
      const std::lock_guard lock(mutex);
      check_abort();
      int length = 0;
      for (int from = waiting(kCallTag, length); from >= 0; from = waiting(kCallTag, length)) {
        MPI_Recv(nullptr, 0, MPI_BYTE, from, kCallTag, control_, MPI_STATUS_IGNORE);
        const auto& answer = told_.emplace_back(packed({awaited(), state_ ? state_() : ""}));
        tell(answer.data(), answer.size(), MPI_CHAR, from, kAnswerTag);
      }
      for (int from = waiting(kAnswerTag, length); from >= 0; from = waiting(kAnswerTag, length)) {
        std::string answer(static_cast<std::size_t>(length), '\0');
        MPI_Recv(answer.data(), length, MPI_CHAR, from, kAnswerTag, control_, MPI_STATUS_IGNORE);
        answers_.insert_or_assign(from, unpacked(answer));
      }
    } catch (const std::exception&) {
      return;  // aborted, or MPI is broken: the calls of the run meet it too
    }
}

Stalls MpiProcess::stalls() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(kRollCall.v);
  {
    const std::unique_lock lock(mutex, kPatience);
    if (!lock) return {};
    answers_.clear();
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) tell(nullptr, 0, MPI_BYTE, peer, kCallTag);
  }
  const auto answered = [&] {
    const std::lock_guard lock(mutex);
    return aborted_ || answers_.size() + 1 == static_cast<std::size_t>(size_);
  };
  while (!answered() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kListen);
  const std::lock_guard lock(mutex);
  Answers answers = answers_;
  answers.emplace(rank_, Answer{awaited(), ""});
  Stalls found = stalls_from(rank_, size_, answers);
  found.over = aborted_;
  return found;
}

class MpiCommunicator final : public MessageCommunicator<MpiCommunicator> {
 public:
  // Owns `comm`.
  MpiCommunicator(std::shared_ptr<MpiProcess> process, MPI_Comm comm)
      : process_(std::move(process)), comm_(comm) {
    const std::lock_guard lock(process_->mutex);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  // Not freed: MPI_Comm_free is collective, and members let go of a group at different times or not at all.
  ~MpiCommunicator() override = default;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  MpiCollective collective() { return {*process_, comm_}; }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    check_members(ranks, rank_, size_);
    MPI_Comm made = MPI_COMM_NULL;
    {
      const std::lock_guard lock(process_->mutex);
      process_->check_abort();
      MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
      require(MPI_Comm_group(comm_, &all), "MPI_Comm_group");
      require(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members), "MPI_Group_incl");
      require(MPI_Comm_create_group(comm_, members, kDataTag, &made), "MPI_Comm_create_group");
      MPI_Group_free(&all);
      MPI_Group_free(&members);
    }
    return std::make_unique<MpiCommunicator>(process_, made);
  }

  Stalls stalls() override { return process_->stalls(); }
  void answer_with(const std::function<std::string()>& state) override { process_->answer_with(state); }
  void abort(std::string_view reason) noexcept override { process_->abort(reason); }

 private:
  std::shared_ptr<MpiProcess> process_;
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
};

}  // namespace

bool mpi_available() { return true; }

std::unique_ptr<Communicator> make_mpi_world() {
  auto process = std::make_shared<MpiProcess>();
  MPI_Comm world = MPI_COMM_NULL;
  {
    const std::lock_guard lock(process->mutex);
    require(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  }
  return std::make_unique<MpiCommunicator>(std::move(process), world);
}

}  // namespace sextant
