// Collectives out of messages between two ranks, whatever carries them: each moves what it must once, and sums are taken
// in the order of the ranks.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "core/base/error.hpp"
#include "runtime/communicators/collective_args.hpp"
#include "runtime/communicators/communicator.hpp"
#include "runtime/communicators/ordered_sum.hpp"

namespace sextant {

// `Self` has exchange(), whose result's send(data, bytes, peer) and recv(data, bytes, peer) put messages under way until its
// finish() has seen them through. Peers are ranks of this communicator.
template <class Self>
class MessageCommunicator : public Communicator {
 public:
  // A reduce-scatter and an all-gather.
  void all_reduce(const void* in, void* out, std::int64_t count, Dtype dtype, Reduction reduction,
                  NativeStream stream) override {
    check_all_reduce(in, out, count, dtype);
    auto slices = even_split(count, size());
    const auto element = size_bytes(dtype);
    std::byte* mine = static_cast<std::byte*>(out) + offset_of(slices, rank()) * element;
    reduce_scatter(in, mine, slices, dtype, reduction, stream);
    for (auto& n : slices) n *= element;
    all_gather(mine, out, slices, stream);
  }

  // All-to-all, then the sum of what came, in the order of the ranks.
  void reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, Dtype dtype,
                      Reduction reduction, NativeStream) override {
    check_reduce_scatter(in, out, counts, dtype, rank(), size());
    const auto element = size_bytes(dtype);
    const auto count = counts[static_cast<std::size_t>(rank())];
    const auto mine = count * element;
    received_.resize(static_cast<std::size_t>(mine * size()));
    const auto* from = static_cast<const std::byte*>(in);
    std::vector<const void*> parts(static_cast<std::size_t>(size()));
    parts[static_cast<std::size_t>(rank())] = from + offset_of(counts, rank()) * element;
    auto collective = self().collective();
    for_each_peer([&](int peer) {
      auto* slot = received_.data() + peer * mine;
      parts[static_cast<std::size_t>(peer)] = slot;
      collective.recv(slot, mine, peer);
    });
    for_each_peer([&](int peer) {
      collective.send(from + offset_of(counts, peer) * element,
                      counts[static_cast<std::size_t>(peer)] * element, peer);
    });
    collective.finish();
    reduce_in_order(parts, out, count, dtype, reduction);
  }

  void all_gather(const void* in, void* out, std::span<const std::int64_t> bytes, NativeStream) override {
    check_all_gather(in, out, bytes, rank(), size());
    auto* to = static_cast<std::byte*>(out);
    const auto mine = bytes[static_cast<std::size_t>(rank())];
    auto collective = self().collective();
    for_each_peer([&](int peer) {
      collective.recv(to + offset_of(bytes, peer), bytes[static_cast<std::size_t>(peer)], peer);
    });
    for_each_peer([&](int peer) { collective.send(in, mine, peer); });
    std::byte* own = to + offset_of(bytes, rank());
    if (own != in && mine > 0) std::memcpy(own, in, static_cast<std::size_t>(mine));
    collective.finish();
  }

  void broadcast(void* data, std::int64_t bytes, int root, NativeStream) override {
    SEXTANT_CHECK(root >= 0 && root < size(), "the root is a rank of the group");
    auto collective = self().collective();
    if (rank() == root)
      for_each_peer([&](int peer) { collective.send(data, bytes, peer); });
    else
      collective.recv(data, bytes, root);
    collective.finish();
  }

  void send(const void* data, std::int64_t bytes, int peer, NativeStream) override {
    check_peer(peer, rank(), size());
    auto collective = self().collective();
    collective.send(data, bytes, peer);
    collective.finish();
  }
  void recv(void* data, std::int64_t bytes, int peer, NativeStream) override {
    check_peer(peer, rank(), size());
    auto collective = self().collective();
    collective.recv(data, bytes, peer);
    collective.finish();
  }

  // Dissemination: in round k everybody tells the rank 2^k further on (Hensgen, Finkel, Manber 1988).
  void barrier(NativeStream) override {
    for (int distance = 1; distance < size(); distance *= 2) {
      auto collective = self().collective();
      collective.recv(nullptr, 0, (rank() + size() - distance) % size());
      collective.send(nullptr, 0, (rank() + distance) % size());
      collective.finish();
    }
  }

 private:
  Self& self() { return static_cast<Self&>(*this); }
  // Starting with the next rank, so that not all send to rank 0 first.
  template <class Visit>
  void for_each_peer(Visit visit) {
    for (int step = 1; step < size(); ++step) visit((rank() + step) % size());
  }

  std::vector<std::byte> received_;
};

}  // namespace sextant
