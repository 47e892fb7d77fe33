#include "runtime/checkpoint/state_exchange.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

namespace sextant {
namespace {

// One rank's message to another: rectangles one after the other, and of each the three fields, row after row.
struct MovedMessage {
  std::vector<const Transfer*> parts;
  std::int64_t size = 0;  // bytes
};
using MovedMessages = std::map<std::pair<int, int>, MovedMessage>;  // by sender and receiver

// A part of a message, in one go.
struct Turn {
  int from = 0, to = 0;
  std::int64_t bytes = 0;
};

// Parts of all messages in an order that all ranks compute alike. Each rank sends one at a time and receives one at a time, in this
// order, so that none waits for ever; round by round those come first whose ends have most before them, so that the link with
// most to carry, which decides, hardly stands still.
std::vector<Turn> in_turn(const MovedMessages& messages, int ranks) {
  constexpr std::int64_t kPartBytes = 1 << 20, kMostRounds = 256;
  std::vector<std::int64_t> sends(static_cast<std::size_t>(ranks)), receives(sends);
  std::vector<Turn> open, turns;
  for (const auto& [ends, message] : messages) {
    open.push_back({ends.first, ends.second, message.size});
    sends[static_cast<std::size_t>(ends.first)] += message.size;
    receives[static_cast<std::size_t>(ends.second)] += message.size;
  }
  const std::int64_t most = std::max(std::ranges::max(sends), std::ranges::max(receives)),
                     part = std::max(kPartBytes, most / kMostRounds);
  const auto before = [&](const Turn& t) {
    return std::max(sends[static_cast<std::size_t>(t.from)], receives[static_cast<std::size_t>(t.to)]);
  };
  while (!open.empty()) {
    std::ranges::stable_sort(open, std::ranges::greater{}, before);
    std::vector<bool> sending(sends.size()), receiving(sends.size());
    for (Turn& t : open) {
      const auto from = static_cast<std::size_t>(t.from), to = static_cast<std::size_t>(t.to);
      if (sending[from] || receiving[to]) continue;
      sending[from] = receiving[to] = true;
      const std::int64_t n = std::min(t.bytes, part);
      turns.push_back({t.from, t.to, n});
      t.bytes -= n;
      sends[from] -= n;
      receives[to] -= n;
    }
    std::erase_if(open, [](const Turn& t) { return t.bytes == 0; });
  }
  return turns;
}

// Communicators for two threads of each rank, of which one sends and one receives, so that neither meets the other in one: a message
// takes that of the highest bit in which its ranks differ, and of the sender's.
class Lanes {
 public:
  explicit Lanes(Communicator& world) {
    for (int bit = 1; bit < world.size(); bit *= 2)
      for (int of = 0; of < 2; ++of) lanes_.push_back(everyone(world));
  }
  Communicator& of(const Turn& t) {
    const auto bit = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(t.from ^ t.to)) - 1);
    return *lanes_[2 * bit + (static_cast<std::size_t>(t.from) >> bit & 1)];
  }

 private:
  std::vector<std::unique_ptr<Communicator>> lanes_;
};

// The bytes of a message, from its first to its last.
class MessageReader {
 public:
  MessageReader(const MovedMessage& message, const HeldPieces& held, std::int64_t element)
      : message_(message), held_(held), element_(element) {}
  // The next `n`: where they lie, or packed into `buffer`, if they do not lie together.
  const std::byte* next(std::int64_t n, std::vector<std::byte>& buffer) {
    if (line_.empty()) begin_line();
    if (static_cast<std::int64_t>(line_.size()) >= n) return take(static_cast<std::size_t>(n)).data();
    buffer.resize(static_cast<std::size_t>(n));
    for (std::size_t filled = 0; filled < buffer.size();) {
      if (line_.empty()) begin_line();
      const auto some = take(std::min(line_.size(), buffer.size() - filled));
      std::memcpy(buffer.data() + filled, some.data(), some.size());
      filled += some.size();
    }
    return buffer.data();
  }

 private:
  std::span<const std::byte> take(std::size_t n) {
    const auto some = line_.first(n);
    line_ = line_.subspan(n);
    return some;
  }
  // Rows that lie together are one line.
  void begin_line() {
    const Extent& what = message_.parts[part_]->extent;
    if (row_ == 0 && field_ == 0) {  // a rectangle that was cut from one source lies in one of its pieces
      const auto& pieces = held_.at(message_.parts[part_]->tensor);
      piece_ = *std::ranges::find_if(
          pieces, [&](const HeldState::Piece* p) { return intersection(what, p->extent) == what; });
    }
    const Extent& there = piece_->extent;
    const std::int64_t rows = what.cols == there.cols ? what.rows : 1;
    line_ = piece_->data[field_].subspan(
        static_cast<std::size_t>(((what.row + row_ - there.row) * there.cols + what.col - there.col) *
                                 element_),
        static_cast<std::size_t>(rows * what.cols * element_));
    row_ += rows;
    if (row_ == what.rows) {
      row_ = 0;
      ++field_;
    }
    if (field_ == kStateFields.size()) {
      field_ = 0;
      ++part_;
    }
  }

  const MovedMessage& message_;
  const HeldPieces& held_;
  std::int64_t element_;
  std::size_t part_ = 0, field_ = 0;
  std::int64_t row_ = 0;
  const HeldState::Piece* piece_ = nullptr;
  std::span<const std::byte> line_;
};

}  // namespace

std::vector<Arrived> exchange(std::span<const Transfer> transfers, const HeldPieces& held,
                              std::int64_t element, Communicator& world) {
  const int rank = world.rank();
  MovedMessages messages;
  for (const Transfer& t : transfers) {
    if (t.to == t.from) continue;
    MovedMessage& message = messages[{t.from, t.to}];
    message.parts.push_back(&t);
    message.size += t.bytes(element);
  }
  if (messages.empty()) return {};  // on every rank: each has what it needs
  std::map<int, MessageReader> out;
  std::vector<Arrived> in;
  std::map<int, std::byte*> places;  // of what is received next, by sender
  for (const auto& [ends, message] : messages) {
    if (ends.first == rank) out.try_emplace(ends.second, message, held, element);
    if (ends.second != rank) continue;
    auto values = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(message.size));
    places[ends.first] = values.get();
    in.push_back({message.parts, std::move(values)});
  }
  const std::vector<Turn> turns = in_turn(messages, world.size());
  Lanes lanes(world);
  const auto send = [&] {
    std::vector<std::byte> buffer;
    for (const Turn& t : turns)
      if (t.from == rank) lanes.of(t).send(out.at(t.to).next(t.bytes, buffer), t.bytes, t.to, {});
  };
  const auto receive = [&] {
    for (const Turn& t : turns)
      if (t.to == rank) {
        std::byte*& place = places.at(t.from);
        lanes.of(t).recv(place, t.bytes, t.from, {});
        place += t.bytes;
      }
  };
  std::exception_ptr why;
  {
    std::jthread back([&] {
      try {
        receive();
      } catch (const std::exception& e) {
        why = std::current_exception();
        world.abort(e.what());
      }
    });
    try {
      send();
    } catch (const std::exception& e) {
      world.abort(e.what());
      back.join();
      throw;
    }
  }
  if (why) std::rethrow_exception(why);
  return in;
}

}  // namespace sextant
