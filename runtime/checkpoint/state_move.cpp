#include "runtime/checkpoint/state_move.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "runtime/checkpoint/state_exchange.hpp"
#include "runtime/checkpoint/state_snapshot.hpp"

namespace sextant {
namespace {

// A rectangle of a tensor as ranks tell each other: by the tensor's place in a list that all have.
struct MovedPlace {
  std::int64_t tensor = 0, row = 0, col = 0, rows = 0, cols = 0;
  Extent extent() const { return {row, col, rows, cols}; }
};

// What is left of a rectangle without another one inside it.
void cut_out(const Extent& whole, const Extent& hole, std::vector<Extent>& left) {
  const auto add = [&](std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols) {
    if (rows > 0 && cols > 0) left.push_back({row, col, rows, cols});
  };
  add(whole.row, whole.col, hole.row - whole.row, whole.cols);
  add(hole.row + hole.rows, whole.col, whole.row + whole.rows - hole.row - hole.rows, whole.cols);
  add(hole.row, whole.col, hole.rows, hole.col - whole.col);
  add(hole.row, hole.col + hole.cols, hole.rows, whole.col + whole.cols - hole.col - hole.cols);
}

std::vector<std::vector<MovedPlace>> gather_places(Communicator& world, const std::vector<MovedPlace>& mine) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> bytes(ranks), eight(ranks, sizeof(std::int64_t));
  const auto own = static_cast<std::int64_t>(mine.size() * sizeof(MovedPlace));
  world.all_gather(&own, bytes.data(), eight, {});
  std::vector<MovedPlace> all(
      static_cast<std::size_t>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0})) /
      sizeof(MovedPlace));
  world.all_gather(mine.data(), all.data(), bytes, {});
  std::vector<std::vector<MovedPlace>> by_rank(ranks);
  auto at = all.begin();
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto end = at + bytes[r] / static_cast<std::int64_t>(sizeof(MovedPlace));
    by_rank[r].assign(at, end);
    at = end;
  }
  return by_rank;
}

// Who sends what to whom: a rank takes what it has from itself, the rest from the ranks behind it, nearest first, so that
// replicas share the work. All ranks compute the same. What nobody has is added to `missing`.
std::vector<Transfer> plan_transfers(const std::vector<std::vector<MovedPlace>>& has,
                                     const std::vector<std::vector<MovedPlace>>& wants,
                                     std::vector<MovedPlace>& missing) {
  struct Source {
    int rank = 0;
    Extent extent;
  };
  std::map<std::int64_t, std::vector<Source>> by_tensor;
  const int ranks = static_cast<int>(has.size());
  for (int r = 0; r < ranks; ++r)
    for (const MovedPlace& p : has[static_cast<std::size_t>(r)])
      by_tensor[p.tensor].push_back({r, p.extent()});
  std::vector<Transfer> transfers;
  for (int to = 0; to < ranks; ++to)
    for (const MovedPlace& want : wants[static_cast<std::size_t>(to)]) {
      std::vector<Source> sources = by_tensor[want.tensor];
      std::ranges::stable_sort(sources, {}, [&](const Source& s) { return (s.rank - to + ranks) % ranks; });
      std::vector<Extent> open = {want.extent()};
      for (const Source& source : sources) {
        std::vector<Extent> left;
        for (const Extent& e : open) {
          const Extent both = intersection(e, source.extent);
          if (both.elements() == 0) {
            left.push_back(e);
            continue;
          }
          transfers.push_back({source.rank, to, want.tensor, both});
          cut_out(e, both, left);
        }
        open = std::move(left);
        if (open.empty()) break;
      }
      for (const Extent& e : open) missing.push_back({want.tensor, e.row, e.col, e.rows, e.cols});
    }
  return transfers;
}

// Copies a rectangle between two row-major rectangles that hold it.
void copy_extent(const Extent& what, std::byte* to, const Extent& there, const std::byte* from,
                 const Extent& here, std::int64_t element) {
  for (std::int64_t r = what.row; r < what.row + what.rows; ++r)
    std::memcpy(to + ((r - there.row) * there.cols + what.col - there.col) * element,
                from + ((r - here.row) * here.cols + what.col - here.col) * element,
                static_cast<std::size_t>(what.cols * element));
}

// Rectangles with their values, by tensor: what the new layout reads.
class Values {
 public:
  void add(std::int64_t tensor, const Extent& extent, const std::array<const std::byte*, 3>& data) {
    by_tensor_[tensor].push_back({extent, data});
  }
  void read(std::int64_t tensor, StateField field, const Extent& want, std::byte* out,
            std::int64_t element) const {
    const auto found = by_tensor_.find(tensor);
    if (found == by_tensor_.end()) return;
    for (const auto& [extent, data] : found->second) {
      const Extent both = intersection(want, extent);
      if (both.elements() > 0)
        copy_extent(both, out, want, data[static_cast<std::size_t>(field)], extent, element);
    }
  }

 private:
  struct Value {
    Extent extent;
    std::array<const std::byte*, 3> data;
  };
  std::map<std::int64_t, std::vector<Value>> by_tensor_;
};

// What of a model's state nobody has been found to hold.
class OpenState {
 public:
  explicit OpenState(const ModelSpec& model) {
    for (const ModelSlice& tensor : model_tensors(model))
      open_[tensor.name] = {{0, 0, tensor.model_rows, tensor.model_cols}};
  }
  void cover(const std::string& tensor, const Extent& held) {
    std::vector<Extent>& of_tensor = open_[tensor];
    std::vector<Extent> left;
    for (const Extent& e : of_tensor) {
      const Extent both = intersection(e, held);
      if (both.elements() == 0)
        left.push_back(e);
      else
        cut_out(e, both, left);
    }
    of_tensor = std::move(left);
  }
  std::optional<std::string> text() const {
    std::size_t pieces = 0;
    std::string first;
    for (const auto& [tensor, extents] : open_) {
      if (!extents.empty() && pieces == 0) first = tensor + sextant::to_string(extents.front());
      pieces += extents.size();
    }
    if (pieces == 0) return std::nullopt;
    return fmt::format("{} piece{} of the state, first {}", pieces, pieces == 1 ? "" : "s", first);
  }

 private:
  std::map<std::string, std::vector<Extent>> open_;
};

// Places of tensors in the list that all ranks have.
class TensorIndex {
 public:
  explicit TensorIndex(const ModelSpec& model) {
    for (const ModelSlice& tensor : model_tensors(model)) {
      places_.emplace(tensor.name, static_cast<std::int64_t>(names_.size()));
      names_.push_back(tensor.name);
    }
  }
  std::int64_t of(const std::string& tensor) const { return places_.at(tensor); }
  const std::string& name(std::int64_t place) const { return names_[static_cast<std::size_t>(place)]; }
  MovedPlace moved(const std::string& tensor, const Extent& e) const {
    return {of(tensor), e.row, e.col, e.rows, e.cols};
  }

 private:
  std::map<std::string, std::int64_t> places_;
  std::vector<std::string> names_;
};

std::vector<MovedPlace> held_places(std::span<const HeldState* const> held, const TensorIndex& index) {
  std::vector<MovedPlace> has;
  for (const HeldState* part : held)
    for (const HeldState::Piece& piece : part->pieces())
      has.push_back(index.moved(piece.tensor, piece.extent));
  return has;
}

std::vector<MovedPlace> wanted_places(const RankState& to, const TensorIndex& index) {
  std::vector<MovedPlace> wants;
  for (std::size_t b = 0; b < to.layout().buckets.size(); ++b)
    to.for_each_piece(b, [&](std::size_t p, ElementRange range) {
      const std::int64_t first = to.begin_in_slice(b, p, range);
      for (const SliceExtent& e : extents_of(to.slice_of(p), {first, first + range.end - range.begin}))
        wants.push_back(index.moved(to.slice_of(p).name, e.extent));
    });
  return wants;
}

// What this rank holds itself, and what has arrived.
Values values_of(const HeldPieces& pieces, const std::vector<Arrived>& arrived, std::int64_t element) {
  Values values;
  for (const auto& [tensor, of_tensor] : pieces)
    for (const HeldState::Piece* piece : of_tensor)
      values.add(tensor, piece->extent,
                 {piece->data[0].data(), piece->data[1].data(), piece->data[2].data()});
  for (const Arrived& message : arrived) {
    const std::byte* at = message.values.get();
    for (const Transfer* t : message.parts) {
      const std::int64_t field = t->extent.elements() * element;
      values.add(t->tensor, t->extent, {at, at + field, at + 2 * field});
      at += 3 * field;
    }
  }
  return values;
}

// Bytes that cross between ranks, and the most that one takes.
void count_bytes(std::span<const Transfer> transfers, int ranks, std::int64_t element, StateMove& move) {
  std::vector<std::int64_t> received(static_cast<std::size_t>(ranks));
  for (const Transfer& t : transfers)
    if (t.from != t.to) received[static_cast<std::size_t>(t.to)] += t.bytes(element);
  move.bytes = std::accumulate(received.begin(), received.end(), std::int64_t{0});
  move.most_bytes = std::ranges::max(received);
}

std::int64_t clock_field(Communicator& world, std::int64_t mine) {
  auto value = static_cast<double>(mine);
  world.all_reduce(&value, &value, 1, Dtype::fp64, Reduction::max, {});
  return static_cast<std::int64_t>(value);
}

}  // namespace

HeldState::HeldState(const RankState& state, Device& device, const TrainerClock& clock) : clock_(clock) {
  const auto element = static_cast<std::int64_t>(size_bytes(state.accumulator()));
  const std::size_t buckets = state.layout().buckets.size();
  for (std::size_t f = 0; f < kStateFields.size(); ++f) {
    slices_[f].resize(buckets);
    for (std::size_t b = 0; b < buckets; ++b) {
      slices_[f][b].resize(static_cast<std::size_t>(state.slice(b) * element));
      copy_out(state, device, b, kStateFields[f], slices_[f][b]);
    }
  }
  for (std::size_t b = 0; b < buckets; ++b)
    state.for_each_piece(b, [&](std::size_t p, ElementRange range) {
      const ModelSlice& slice = state.slice_of(p);
      const std::int64_t first = state.begin_in_slice(b, p, range);
      for (const SliceExtent& e : extents_of(slice, {first, first + range.end - range.begin})) {
        Piece& piece = pieces_.emplace_back(Piece{slice.name, e.extent, {}});
        for (std::size_t f = 0; f < kStateFields.size(); ++f)
          piece.data[f] = std::span<const std::byte>(slices_[f][b])
                              .subspan(static_cast<std::size_t>((range.begin + e.begin - first) * element),
                                       static_cast<std::size_t>(e.extent.elements() * element));
      }
    });
}

std::int64_t HeldState::bytes() const {
  std::int64_t n = 0;
  for (const auto& field : slices_)
    for (const auto& slice : field) n += static_cast<std::int64_t>(slice.size());
  return n;
}

std::optional<std::string> missing_state(const CarriedState& carried, const ModelSpec& model) {
  OpenState open(model);
  for (const auto& rank : carried.ranks)
    if (rank)
      for (const HeldState::Piece& piece : rank->pieces()) open.cover(piece.tensor, piece.extent);
  return open.text();
}

std::optional<std::string> missing_state(std::span<const HeldState* const> held, Communicator& world,
                                         const ModelSpec& model) {
  const TensorIndex index(model);
  OpenState open(model);
  for (const auto& rank : gather_places(world, held_places(held, index)))
    for (const MovedPlace& place : rank) open.cover(index.name(place.tensor), place.extent());
  return open.text();
}

std::vector<const HeldState*> held_by(const CarriedState& carried, int rank, int ranks) {
  std::vector<const HeldState*> held;
  for (auto r = static_cast<std::size_t>(rank); r < carried.ranks.size();
       r += static_cast<std::size_t>(ranks))
    if (carried.ranks[r]) held.push_back(carried.ranks[r].get());
  return held;
}

StateMove take_state(std::span<const HeldState* const> held, Communicator& world, const RankState& to,
                     Device& device) {
  const auto element = static_cast<std::int64_t>(size_bytes(to.accumulator()));
  const TensorIndex index(to.model());
  const std::vector<MovedPlace> has = held_places(held, index), wants = wanted_places(to, index);
  StateMove move;
  const TrainerClock none{};
  const TrainerClock& own = held.empty() ? none : held.front()->clock();
  move.clock = {clock_field(world, own.step), clock_field(world, own.updates),
                clock_field(world, own.skipped), clock_field(world, own.skipped_in_a_row)};
  std::vector<MovedPlace> missing;
  const auto all_have = gather_places(world, has), all_want = gather_places(world, wants);
  const auto transfers = plan_transfers(all_have, all_want, missing);
  if (!missing.empty())
    throw ConfigError(
        Problem{"", "the state in memory",
                fmt::format("{} pieces that no rank has, first {}{}", missing.size(),
                            index.name(missing.front().tensor), sextant::to_string(missing.front().extent())),
                "every piece with some rank", "resume from the newest checkpoint: --resume"});
  count_bytes(transfers, world.size(), element, move);

  HeldPieces pieces;
  for (const HeldState* part : held)
    for (const HeldState::Piece& piece : part->pieces()) pieces[index.of(piece.tensor)].push_back(&piece);
  const std::vector<Arrived> arrived = exchange(transfers, pieces, element, world);
  const Values values = values_of(pieces, arrived, element);
  fill(to, device,
       [&](StateField field, const ModelSlice& slice, ElementRange range, std::span<std::byte> bytes) {
         for (const SliceExtent& e : extents_of(slice, range))
           values.read(index.of(slice.name), field, e.extent,
                       bytes.data() + (e.begin - range.begin) * element, element);
       });
  return move;
}

}  // namespace sextant
