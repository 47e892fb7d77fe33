// Ranks as threads of one process: they read each other's buffers directly between barriers.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "runtime/communicators/collective_args.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/communicators/ordered_sum.hpp"

namespace sextant {

namespace {

// What one rank passed to the collective under way; all ranks must agree on everything but the pointers.
struct CollectiveCall {
  std::string_view kind;
  std::vector<std::int64_t> sizes;
  Dtype dtype = Dtype::fp32;
  Reduction reduction = Reduction::sum;
  int root = 0;
  const void* in = nullptr;
  const void* staged = nullptr;  // all_reduce: this rank's reduced slice

  bool agrees(const CollectiveCall& o) const {
    return kind == o.kind && sizes == o.sizes && dtype == o.dtype && reduction == o.reduction &&
           root == o.root;
  }
  std::string describe() const { return fmt::format("{} of {} ({})", kind, sum_of(sizes), name(dtype)); }
};

struct Mail {
  const void* data = nullptr;
  std::int64_t bytes = 0;
  enum { empty, posted, copying, taken } state = empty;
};

// Set once, by the first abort.
struct Abort {
  std::mutex mutex;
  std::atomic<bool> set{false};
  std::string reason;
  [[noreturn]] void raise() {
    const std::lock_guard lock(mutex);
    throw Aborted(reason);
  }
};

// The meeting point of one group. Leaving early (abort) must not free a buffer that a peer is still reading:
// `busy_` counts the ranks between two barriers of a collective, and whoever leaves waits for it to be 0.
class Meeting {
 public:
  Meeting(int size, std::shared_ptr<Abort> abort)
      : abort_(std::move(abort)), calls_(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(calls_.size()); }
  CollectiveCall& call(int rank) { return calls_[static_cast<std::size_t>(rank)]; }

  // `more`: the ranks go on to read each other's buffers, until they meet again.
  void meet(bool more) {
    std::unique_lock lock(mutex_);
    const auto generation = generation_;
    if (busy_ > 0 && --busy_ == 0) changed_.notify_all();
    if (++arrived_ == size() && !abort_->set) {
      arrived_ = 0;
      busy_ = more ? size() : 0;
      ++generation_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return generation_ != generation || abort_->set; });
    if (generation_ != generation) return;
    changed_.wait(lock, [&] { return busy_ == 0; });
    lock.unlock();
    abort_->raise();
  }

  // A rank throws between two meetings.
  void drop_out() {
    const std::lock_guard lock(mutex_);
    if (busy_ > 0 && --busy_ == 0) changed_.notify_all();
  }

  void send(int from, int to, const void* data, std::int64_t bytes) {
    std::unique_lock lock(mutex_);
    Mail& mail = mail_[{from, to}];
    if (abort_->set) {
      lock.unlock();
      abort_->raise();
    }
    SEXTANT_CHECK(mail.state == Mail::empty, "two sends to the same rank overlap in time");
    mail = {data, bytes, Mail::posted};
    changed_.notify_all();
    changed_.wait(lock,
                  [&] { return mail.state == Mail::taken || (abort_->set && mail.state != Mail::copying); });
    const bool taken = mail.state == Mail::taken;
    mail = {};
    lock.unlock();
    if (!taken) abort_->raise();
  }

  // The number of bytes that were sent; they are copied only when it is what the receiver expects.
  std::int64_t recv(int from, int to, void* data, std::int64_t bytes) {
    std::unique_lock lock(mutex_);
    Mail& mail = mail_[{from, to}];
    changed_.wait(lock, [&] { return mail.state == Mail::posted || abort_->set; });
    if (mail.state != Mail::posted) {
      lock.unlock();
      abort_->raise();
    }
    const std::int64_t sent = mail.bytes;
    if (sent != bytes) return sent;  // left posted: the abort that follows frees the sender
    mail.state = Mail::copying;
    lock.unlock();
    if (bytes > 0) std::memcpy(data, mail.data, static_cast<std::size_t>(bytes));
    lock.lock();
    mail.state = Mail::taken;
    changed_.notify_all();
    return sent;
  }

  void wake() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

 private:
  std::shared_ptr<Abort> abort_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t generation_ = 0;
  int arrived_ = 0, busy_ = 0;
  std::vector<CollectiveCall> calls_;
  std::map<std::pair<int, int>, Mail> mail_;
};

// What all groups of one world share: the abort, and where members of a new group find each other.
class LocalWorld {
 public:
  using Key =
      std::tuple<const Meeting*, std::vector<int>, int>;  // parent, ranks of it, how many times before

  std::shared_ptr<Meeting> join(const Key& key) {
    const std::lock_guard lock(mutex_);
    const int size = static_cast<int>(std::get<1>(key).size());
    auto& forming = forming_[key];
    if (!forming.meeting) forming.meeting = add(size);
    auto meeting = forming.meeting;
    if (++forming.joined == size) forming_.erase(key);
    return meeting;
  }

  std::shared_ptr<Meeting> add(int size) {
    auto meeting = std::make_shared<Meeting>(size, abort);
    std::erase_if(meetings_, [](const auto& m) { return m.expired(); });
    meetings_.push_back(meeting);
    return meeting;
  }

  void raise_abort(std::string_view reason) {
    {
      const std::lock_guard lock(abort->mutex);
      if (abort->set) return;
      abort->reason = reason;
      abort->set = true;
    }
    const std::lock_guard lock(mutex_);
    for (const auto& weak : meetings_)
      if (const auto meeting = weak.lock()) meeting->wake();
  }

  std::shared_ptr<Abort> abort = std::make_shared<Abort>();

 private:
  struct Forming {
    std::shared_ptr<Meeting> meeting;
    int joined = 0;
  };
  std::mutex mutex_;
  std::map<Key, Forming> forming_;
  std::vector<std::weak_ptr<Meeting>> meetings_;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalWorld> world, std::shared_ptr<Meeting> meeting, int rank)
      : world_(std::move(world)), meeting_(std::move(meeting)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }

  void all_reduce(const void* in, void* out, std::int64_t count, Dtype dtype, Reduction reduction,
                  NativeStream) override {
    check_all_reduce(in, out, count, dtype);
    const auto element = size_bytes(dtype);
    // Each rank reduces its slice aside, then all copy all slices: `in` may be `out`.
    const auto slices = even_split(count, size());
    collective({"all_reduce", {count}, dtype, reduction, 0, in, nullptr}, [&] {
      const auto mine = slices[static_cast<std::size_t>(rank_)];
      scratch_.resize(static_cast<std::size_t>(mine * element));
      reduce_in_order(parts(offset_of(slices, rank_) * element), scratch_.data(), mine, dtype, reduction);
      meeting_->call(rank_).staged = scratch_.data();
      meet(true);
      auto* to = static_cast<std::byte*>(out);
      for (int r = 0; r < size(); ++r) {
        const auto bytes = slices[static_cast<std::size_t>(r)] * element;
        copy(to, meeting_->call(r).staged, bytes);
        to += bytes;
      }
    });
  }

  void reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, Dtype dtype,
                      Reduction reduction, NativeStream) override {
    check_reduce_scatter(in, out, counts, dtype, rank_, size());
    const auto mine = counts[static_cast<std::size_t>(rank_)];
    const auto offset = offset_of(counts, rank_) * size_bytes(dtype);
    // In place: only this rank reads or writes this slice of its vector.
    collective({"reduce_scatter", {counts.begin(), counts.end()}, dtype, reduction, 0, in, nullptr},
               [&] { reduce_in_order(parts(offset), out, mine, dtype, reduction); });
  }

  void all_gather(const void* in, void* out, std::span<const std::int64_t> bytes, NativeStream) override {
    check_all_gather(in, out, bytes, rank_, size());
    collective({"all_gather", {bytes.begin(), bytes.end()}, Dtype::fp8, {}, 0, in, nullptr}, [&] {
      auto* to = static_cast<std::byte*>(out);
      for (int r = 0; r < size(); ++r) {
        const auto n = bytes[static_cast<std::size_t>(r)];
        if (to != meeting_->call(r).in) copy(to, meeting_->call(r).in, n);
        to += n;
      }
    });
  }

  void broadcast(void* data, std::int64_t bytes, int root, NativeStream) override {
    SEXTANT_CHECK(root >= 0 && root < size(), "the root is a rank of the group");
    collective({"broadcast", {bytes}, Dtype::fp8, {}, root, data, nullptr}, [&] {
      if (rank_ != root) copy(static_cast<std::byte*>(data), meeting_->call(root).in, bytes);
    });
  }

  void send(const void* data, std::int64_t bytes, int peer, NativeStream) override {
    check_peer(peer, rank_, size());
    meeting_->send(rank_, peer, data, bytes);
  }

  void recv(void* data, std::int64_t bytes, int peer, NativeStream) override {
    check_peer(peer, rank_, size());
    const auto sent = meeting_->recv(peer, rank_, data, bytes);
    if (sent != bytes)
      fail(fmt::format("rank {} sends {} bytes, rank {} receives {}", peer, sent, rank_, bytes));
  }

  void barrier(NativeStream) override {
    collective({"barrier", {}, Dtype::fp8, {}, 0, nullptr, nullptr}, [] {});
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    check_members(ranks, rank_, size());
    const std::vector<int> list(ranks.begin(), ranks.end());
    const auto self = std::ranges::find(list, rank_) - list.begin();
    auto meeting = world_->join({meeting_.get(), list, groups_[list]++});
    return std::make_unique<LocalCommunicator>(world_, std::move(meeting), static_cast<int>(self));
  }

  void abort(std::string_view reason) noexcept override { world_->raise_abort(reason); }

 private:
  template <class Body>
  void collective(CollectiveCall call, Body body) {
    meeting_->call(rank_) = std::move(call);
    meet(true);
    try {
      check_agreement();
      body();
    } catch (...) {
      if (in_body_) meeting_->drop_out();
      in_body_ = false;
      throw;
    }
    meet(false);
  }

  void meet(bool more) {
    in_body_ = false;
    meeting_->meet(more);
    in_body_ = more;
  }

  // Every rank looks at every call, so every rank throws.
  void check_agreement() {
    const CollectiveCall& first = meeting_->call(0);
    for (int r = 1; r < size(); ++r)
      if (const CollectiveCall& other = meeting_->call(r); !other.agrees(first))
        fail(fmt::format("ranks disagree: rank 0 calls {}, rank {} calls {}", first.describe(), r,
                         other.describe()));
  }

  std::vector<const void*> parts(std::int64_t offset) {
    std::vector<const void*> pointers;
    for (int r = 0; r < size(); ++r)
      pointers.push_back(static_cast<const std::byte*>(meeting_->call(r).in) + offset);
    return pointers;
  }

  [[noreturn]] void fail(const std::string& why) {
    world_->raise_abort(why);
    throw BackendError(why);
  }
  static void copy(std::byte* to, const void* from, std::int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }

  std::shared_ptr<LocalWorld> world_;
  std::shared_ptr<Meeting> meeting_;
  int rank_;
  bool in_body_ = false;  // between two meetings, where peers may read this rank's buffers
  std::vector<std::byte> scratch_;
  std::map<std::vector<int>, int> groups_;  // how many times each group was made
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_world(int ranks) {
  SEXTANT_CHECK(ranks > 0, "a world has ranks");
  const auto world = std::make_shared<LocalWorld>();
  const auto meeting = world->add(ranks);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int r = 0; r < ranks; ++r)
    communicators.push_back(std::make_unique<LocalCommunicator>(world, meeting, r));
  return communicators;
}

void run_ranks(std::span<const std::unique_ptr<Communicator>> world, const RankBody& body) {
  std::mutex mutex;
  std::exception_ptr first, aborted;
  {
    std::vector<std::jthread> threads;
    const auto start = [&](Communicator* c) {
      threads.emplace_back([&, c] {
        try {
          body(*c);
        } catch (const std::exception& error) {
          {
            const std::lock_guard lock(mutex);
            auto& kind = dynamic_cast<const Aborted*>(&error) ? aborted : first;
            if (!kind) kind = std::current_exception();
          }
          c->abort(fmt::format("rank {}: {}", c->rank(), error.what()));
        }
      });
    };
    try {
      for (auto& communicator : world) start(communicator.get());
    } catch (const std::exception& error) {  // those that run wait for one that never comes
      const std::string why = fmt::format("only {} of {} ranks can be started: {} (ulimit -u, -v)",
                                          threads.size(), world.size(), error.what());
      const std::lock_guard lock(mutex);
      first = std::make_exception_ptr(BackendError(why));
      world.front()->abort(why);
    }
  }
  if (first) std::rethrow_exception(first);
  if (aborted) std::rethrow_exception(aborted);
}

}  // namespace sextant
