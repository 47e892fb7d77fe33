// Ranks that are threads of one process and share a device: they meet on a host communicator, tell each other
// their addresses and marks, and then each enqueues its own part on its own stream. Sums are in one order, as
// everywhere. The host waits for its peers' hosts, never for the device; so all ranks must enqueue their calls in
// one order, which issue in graph order is.
//
// Ops is what a device offers: Mark, make_mark(), record(Mark, stream), wait(stream, Mark), copy(stream, to, from,
// bytes), reduce(stream, parts, out, count, dtype, maximum), allocate(bytes), release(memory), on_host(stream).
#pragma once

#include <array>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "runtime/communicators/collective_args.hpp"
#include "runtime/communicators/communicator.hpp"

namespace sextant {

// What the ranks of a device share, because one may leave, by an error or an abort, while a peer still enqueues what it
// was told to wait for or to read: marks live until the last communicator is gone, and who leaves a call before its
// end does so behind all who are inside of one.
template <class Ops>
class DeviceSharers {
 public:
  using Mark = typename Ops::Mark;
  explicit DeviceSharers(Ops ops) : ops_(std::move(ops)) {}
  DeviceSharers(const DeviceSharers&) = delete;
  DeviceSharers& operator=(const DeviceSharers&) = delete;
  ~DeviceSharers() {
    for (const Mark& mark : marks_) ops_.destroy_mark(mark);
  }

  const Ops& ops() const { return ops_; }
  Mark make_mark() {
    const Mark mark = ops_.make_mark();
    const std::lock_guard lock(mutex_);
    marks_.push_back(mark);
    return mark;
  }

  void enter() {
    const std::lock_guard lock(mutex_);
    ++inside_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--inside_ == 0) empty_.notify_all();
  }
  // Behind an abort, which ends every call.
  void leave_last() {
    leave();
    std::unique_lock lock(mutex_);
    empty_.wait(lock, [&] { return inside_ == 0; });
  }

 private:
  const Ops ops_;
  std::mutex mutex_;
  std::condition_variable empty_;
  std::vector<Mark> marks_;
  int inside_ = 0;  // ranks between the beginning and the end of a call
};

template <class Ops>
class SharedDeviceCommunicator final : public Communicator {
 public:
  SharedDeviceCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<DeviceSharers<Ops>> sharers)
      : host_(std::move(host)),
        sharers_(std::move(sharers)),
        ops_(sharers_->ops()),
        begun_(sharers_->make_mark()),
        done_(sharers_->make_mark()) {}
  ~SharedDeviceCommunicator() override {
    if (scratch_) ops_.release(scratch_);
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  void all_reduce(const void* in, void* out, std::int64_t count, Dtype dtype, Reduction reduction,
                  NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->all_reduce(in, out, count, dtype, reduction, stream);
    check_all_reduce(in, out, count, dtype);
    if (size() == 1) {
      if (in != out) ops_.copy(stream, out, in, count * size_bytes(dtype));
      return;
    }
    // Each rank reduces its slice aside, then all copy all slices: `in` may be `out`.
    const auto slices = even_split(count, size());
    const std::int64_t element = size_bytes(dtype), mine = slices[static_cast<std::size_t>(rank())];
    among_peers([&] {
      begin({"all_reduce", hash({&count, 1}), dtype, reduction, 0, in}, stream);
      void* const aside = scratch(mine * element);
      reduce(stream, offset_of(slices, rank()) * element, aside, mine, dtype, reduction);
      meet(done_, aside, stream);
      auto* to = static_cast<std::byte*>(out);
      for (int r = 0; r < size(); ++r) {
        const std::int64_t bytes = slices[static_cast<std::size_t>(r)] * element;
        ops_.copy(stream, to, cards_[static_cast<std::size_t>(r)].data, bytes);
        to += bytes;
      }
      // All have enqueued their reading of the slices aside, which may be released from now on.
      host_->barrier({});
    });
  }

  void reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, Dtype dtype,
                      Reduction reduction, NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->reduce_scatter(in, out, counts, dtype, reduction, stream);
    check_reduce_scatter(in, out, counts, dtype, rank(), size());
    among_peers([&] {
      begin({"reduce_scatter", hash(counts), dtype, reduction, 0, in}, stream);
      // In place: only this rank reads or writes this slice of its vector.
      reduce(stream, offset_of(counts, rank()) * size_bytes(dtype), out,
             counts[static_cast<std::size_t>(rank())], dtype, reduction);
      meet(done_, nullptr, stream);
    });
  }

  void all_gather(const void* in, void* out, std::span<const std::int64_t> bytes,
                  NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->all_gather(in, out, bytes, stream);
    check_all_gather(in, out, bytes, rank(), size());
    among_peers([&] {
      begin({"all_gather", hash(bytes), Dtype::fp8, {}, 0, in}, stream);
      auto* to = static_cast<std::byte*>(out);
      for (int r = 0; r < size(); ++r) {
        const std::int64_t n = bytes[static_cast<std::size_t>(r)];
        const void* const from = cards_[static_cast<std::size_t>(r)].data;
        if (to != from) ops_.copy(stream, to, from, n);
        to += n;
      }
      meet(done_, nullptr, stream);
    });
  }

  void broadcast(void* data, std::int64_t bytes, int root, NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->broadcast(data, bytes, root, stream);
    SEXTANT_CHECK(root >= 0 && root < size(), "the root is a rank of the group");
    among_peers([&] {
      begin({"broadcast", hash({&bytes, 1}), Dtype::fp8, {}, root, data}, stream);
      if (rank() != root) ops_.copy(stream, data, cards_[static_cast<std::size_t>(root)].data, bytes);
      meet(done_, nullptr, stream);
    });
  }

  void send(const void* data, std::int64_t bytes, int peer, NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->send(data, bytes, peer, stream);
    check_peer(peer, rank(), size());
    among_peers([&] {
      ops_.record(begun_, stream);
      Card card{.data = data, .mark = begun_, .hash = bytes};
      host_->send(&card, sizeof card, peer, {});
      host_->recv(&card, sizeof card, peer, {});
      ops_.wait(stream, card.mark);
    });
  }
  void recv(void* data, std::int64_t bytes, int peer, NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->recv(data, bytes, peer, stream);
    check_peer(peer, rank(), size());
    among_peers([&] {
      Card card;
      host_->recv(&card, sizeof card, peer, {});
      if (card.hash != bytes)
        throw BackendError(
            fmt::format("rank {} sends {} bytes, rank {} receives {}", peer, card.hash, rank(), bytes));
      ops_.wait(stream, card.mark);
      ops_.copy(stream, data, card.data, bytes);
      ops_.record(done_, stream);
      card = {.mark = done_};
      host_->send(&card, sizeof card, peer, {});
    });
  }

  void barrier(NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->barrier(stream);
    among_peers([&] {
      begin({"barrier", 0, Dtype::fp8, {}, 0, nullptr}, stream);
      host_->barrier({});  // the mark is not recorded again before everyone waits for it
    });
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    return std::make_unique<SharedDeviceCommunicator>(host_->group(ranks), sharers_);
  }
  void abort(std::string_view reason) noexcept override { host_->abort(reason); }

 private:
  using Mark = typename Ops::Mark;
  // What a rank tells its peers.
  struct Card {
    const void* data = nullptr;
    Mark mark = {};
    std::int64_t hash = 0;
    std::array<char, 16> kind = {};
    Dtype dtype = Dtype::fp8;
    Reduction reduction = Reduction::sum;
    int root = 0;
  };
  struct Call {
    std::string_view kind;
    std::int64_t hash;
    Dtype dtype;
    Reduction reduction;
    int root;
    const void* data;
  };

  static std::int64_t hash(std::span<const std::int64_t> sizes) {  // FNV-1a over the sizes
    std::uint64_t h = 14695981039346656037u;
    for (const std::int64_t n : sizes) h = (h ^ static_cast<std::uint64_t>(n)) * 1099511628211u;
    return static_cast<std::int64_t>(h);
  }

  template <class Body>
  void among_peers(Body body) {
    sharers_->enter();
    try {
      body();
    } catch (const std::exception& error) {
      host_->abort(error.what());  // nobody stays inside
      sharers_->leave_last();
      throw;
    }
    sharers_->leave();
  }

  // Every rank's work so far comes before what this rank enqueues next; its peers' cards are in cards_.
  void begin(const Call& call, NativeStream stream) {
    Card own{.data = call.data,
             .hash = call.hash,
             .dtype = call.dtype,
             .reduction = call.reduction,
             .root = call.root};
    std::memcpy(own.kind.data(), call.kind.data(), std::min(call.kind.size(), own.kind.size() - 1));
    exchange(begun_, own, stream);
    for (const Card& card : cards_)
      if (card.kind != own.kind || card.hash != own.hash || card.dtype != own.dtype ||
          card.reduction != own.reduction || card.root != own.root)
        throw BackendError(fmt::format("ranks disagree: rank {} calls {} ({}), a peer {} ({})", rank(),
                                       own.kind.data(), name(own.dtype), card.kind.data(), name(card.dtype)));
    wait_for_all(stream);
  }
  void meet(Mark mark, const void* data, NativeStream stream) {
    Card own;
    own.data = data;
    exchange(mark, own, stream);
    wait_for_all(stream);
  }
  void exchange(Mark mark, Card own, NativeStream stream) {
    own.mark = mark;
    ops_.record(mark, stream);
    cards_.resize(static_cast<std::size_t>(size()));
    const std::vector<std::int64_t> bytes(cards_.size(), sizeof(Card));
    host_->all_gather(&own, cards_.data(), bytes, {});
  }
  void wait_for_all(NativeStream stream) {
    for (std::size_t r = 0; r < cards_.size(); ++r)
      if (static_cast<int>(r) != rank()) ops_.wait(stream, cards_[r].mark);
  }

  void reduce(NativeStream stream, std::int64_t offset, void* out, std::int64_t count, Dtype dtype,
              Reduction reduction) {
    std::vector<const void*> parts;
    for (const Card& card : cards_) parts.push_back(static_cast<const std::byte*>(card.data) + offset);
    ops_.reduce(stream, parts, out, count, dtype, reduction == Reduction::max);
  }

  // Behind begin(): what is enqueued next comes after the peers' reading of what the last call left here.
  // Releasing memory waits for the device.
  void* scratch(std::int64_t bytes) {
    if (bytes > scratch_bytes_) {
      if (scratch_) ops_.release(scratch_);
      scratch_ = ops_.allocate(bytes);
      scratch_bytes_ = bytes;
    }
    return scratch_;
  }

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<DeviceSharers<Ops>> sharers_;
  const Ops& ops_;
  Mark begun_, done_;
  std::vector<Card> cards_;
  void* scratch_ = nullptr;
  std::int64_t scratch_bytes_ = 0;
};

// Wraps all ranks of a world of threads.
template <class Ops>
void share_device(std::span<std::unique_ptr<Communicator>> world, Ops ops) {
  const auto sharers = std::make_shared<DeviceSharers<Ops>>(std::move(ops));
  for (auto& rank : world) rank = std::make_unique<SharedDeviceCommunicator<Ops>>(std::move(rank), sharers);
}

}  // namespace sextant
