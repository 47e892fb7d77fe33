// Ranks that are threads of one process and share a device: they meet on a host communicator, tell each other
// their addresses and marks, and then each enqueues its own part on its own stream. Sums are in one order, as
// everywhere. The host waits for its peers' hosts, never for the device; so all ranks must enqueue their calls in
// one order, which issue in graph order is.
//
// Ops is what a device offers: Mark, make_mark(), record(Mark, stream), wait(stream, Mark), copy(stream, to, from,
// bytes), reduce(stream, parts, out, count, dtype, maximum), allocate(bytes), release(memory), on_host(stream).
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "runtime/communicators/collective_args.hpp"
#include "runtime/communicators/communicator.hpp"

namespace sextant {

template <class Ops>
class SharedDeviceCommunicator final : public Communicator {
 public:
  SharedDeviceCommunicator(std::unique_ptr<Communicator> host, Ops ops)
      : host_(std::move(host)), ops_(std::move(ops)), begun_(ops_.make_mark()), done_(ops_.make_mark()) {}
  ~SharedDeviceCommunicator() override {
    if (scratch_) ops_.release(scratch_);
    ops_.destroy_mark(begun_), ops_.destroy_mark(done_);
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
    host_->barrier(
        {});  // all have enqueued their reading of the slices aside, which may be released from now on
  }

  void reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, Dtype dtype,
                      Reduction reduction, NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->reduce_scatter(in, out, counts, dtype, reduction, stream);
    check_reduce_scatter(in, out, counts, dtype, rank(), size());
    begin({"reduce_scatter", hash(counts), dtype, reduction, 0, in}, stream);
    // In place: only this rank reads or writes this slice of its vector.
    reduce(stream, offset_of(counts, rank()) * size_bytes(dtype), out,
           counts[static_cast<std::size_t>(rank())], dtype, reduction);
    meet(done_, nullptr, stream);
  }

  void all_gather(const void* in, void* out, std::span<const std::int64_t> bytes,
                  NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->all_gather(in, out, bytes, stream);
    check_all_gather(in, out, bytes, rank(), size());
    begin({"all_gather", hash(bytes), Dtype::fp8, {}, 0, in}, stream);
    auto* to = static_cast<std::byte*>(out);
    for (int r = 0; r < size(); ++r) {
      const std::int64_t n = bytes[static_cast<std::size_t>(r)];
      const void* const from = cards_[static_cast<std::size_t>(r)].data;
      if (to != from) ops_.copy(stream, to, from, n);
      to += n;
    }
    meet(done_, nullptr, stream);
  }

  void broadcast(void* data, std::int64_t bytes, int root, NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->broadcast(data, bytes, root, stream);
    SEXTANT_CHECK(root >= 0 && root < size(), "the root is a rank of the group");
    begin({"broadcast", hash({&bytes, 1}), Dtype::fp8, {}, root, data}, stream);
    if (rank() != root) ops_.copy(stream, data, cards_[static_cast<std::size_t>(root)].data, bytes);
    meet(done_, nullptr, stream);
  }

  void send(const void* data, std::int64_t bytes, int peer, NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->send(data, bytes, peer, stream);
    check_peer(peer, rank(), size());
    ops_.record(begun_, stream);
    Card card{.data = data, .mark = begun_, .hash = bytes};
    host_->send(&card, sizeof card, peer, {});
    host_->recv(&card, sizeof card, peer, {});
    ops_.wait(stream, card.mark);
  }
  void recv(void* data, std::int64_t bytes, int peer, NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->recv(data, bytes, peer, stream);
    check_peer(peer, rank(), size());
    Card card;
    host_->recv(&card, sizeof card, peer, {});
    if (card.hash != bytes)
      fail(fmt::format("rank {} sends {} bytes, rank {} receives {}", peer, card.hash, rank(), bytes));
    ops_.wait(stream, card.mark);
    ops_.copy(stream, data, card.data, bytes);
    ops_.record(done_, stream);
    card = {.mark = done_};
    host_->send(&card, sizeof card, peer, {});
  }

  void barrier(NativeStream stream) override {
    if (ops_.on_host(stream)) return host_->barrier(stream);
    begin({"barrier", 0, Dtype::fp8, {}, 0, nullptr}, stream);
    host_->barrier({});  // the mark is not recorded again before everyone waits for it
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    return std::make_unique<SharedDeviceCommunicator>(host_->group(ranks), ops_);
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
        fail(fmt::format("ranks disagree: rank {} calls {} ({}), a peer {} ({})", rank(), own.kind.data(),
                         name(own.dtype), card.kind.data(), name(card.dtype)));
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
      scratch_ = ops_.allocate(bytes), scratch_bytes_ = bytes;
    }
    return scratch_;
  }

  [[noreturn]] void fail(const std::string& why) {
    host_->abort(why);
    throw BackendError(why);
  }

  std::unique_ptr<Communicator> host_;
  Ops ops_;
  Mark begun_, done_;
  std::vector<Card> cards_;
  void* scratch_ = nullptr;
  std::int64_t scratch_bytes_ = 0;
};

}  // namespace sextant
