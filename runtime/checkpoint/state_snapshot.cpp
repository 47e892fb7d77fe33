#include "runtime/checkpoint/state_snapshot.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.hpp"

namespace sextant {
namespace {

// Of one part: few enough to be made in some 20 us, so that nobody waits long for who has taken one.
constexpr std::size_t kPartBytes = std::size_t{1} << 17;

template <class Bytes>
Bytes part_of(Bytes bytes, std::int64_t first, std::int64_t n, std::int64_t element) {
  return bytes.subspan(static_cast<std::size_t>(first * element), static_cast<std::size_t>(n * element));
}

// f(part's view, its space, its bytes in `slice`) for the device's and the host's part of an owned slice.
template <class F>
void for_each_part(const RankState& state, std::size_t b, StateField field, std::span<std::byte> slice, F f) {
  for (const bool host : {false, true}) {
    const std::int64_t n = host ? state.on_host(b) : state.on_device(b);
    if (n == 0) continue;
    const TensorView view = state.field(b, host, field);
    f(static_cast<std::byte*>(view.data), host ? Space::host : Space::device,
      part_of(slice, host ? state.on_device(b) : 0, n, size_bytes(view.dtype)));
  }
}

// f(where to, where from, in which space, bytes) for each run of bytes that is copied.
template <class Slices, class F>
void for_each_copy(const RankState& state, const Slices& slices, F f) {
  for (std::size_t field = 0; field < kStateFields.size(); ++field)
    for (std::size_t b = 0; b < slices[field].size(); ++b) {
      if (slices[field][b].empty()) continue;
      for_each_part(state, b, kStateFields[field], slices[field][b],
                    [&](const std::byte* from, Space space, std::span<std::byte> to) {
                      f(to.data(), from, space, to.size());
                    });
    }
}

}  // namespace

std::span<std::byte> StateSnapshot::memory(Device& device, std::size_t bytes) {
  if (device.unified()) return plain_.emplace_back(bytes);
  return {page_locked_.emplace_back(device, Space::host, Bytes(static_cast<std::int64_t>(bytes))).data(),
          bytes};
}

StateSnapshot::StateSnapshot(const RankState& state, Device& device) {
  const std::int64_t element = size_bytes(state.accumulator());
  const std::size_t buckets = state.layout().buckets.size();
  for (auto& field : slices_) field.resize(buckets);
  for (std::size_t b = 0; b < buckets; ++b) {
    bool needed = false;
    state.for_each_piece(b, [&](std::size_t p, ElementRange) { needed = needed || state.stores(b, p); });
    if (!needed) continue;
    for (auto& field : slices_) field[b] = memory(device, static_cast<std::size_t>(state.slice(b) * element));
    state.for_each_piece(b, [&](std::size_t p, ElementRange range) {
      if (!state.stores(b, p)) return;
      const ModelSlice& slice = state.slice_of(p);
      const std::int64_t first = state.begin_in_slice(b, p, range);
      for (const SliceExtent& e : extents_of(slice, {first, first + range.end - range.begin})) {
        Piece& piece = pieces_.emplace_back(Piece{slice.name, e.extent, {}});
        for (std::size_t f = 0; f < kStateFields.size(); ++f)
          piece.data[f] = part_of(std::span<const std::byte>(slices_[f][b]), range.begin + e.begin - first,
                                  e.extent.elements(), element);
      }
    });
  }
  if (device.unified()) cut(state);
}

std::int64_t StateSnapshot::bytes() const {
  std::int64_t n = 0;
  for (const Piece& piece : pieces_)
    for (const auto& data : piece.data) n += static_cast<std::int64_t>(data.size());
  return n;
}

void StateSnapshot::cut(const RankState& state) {
  for_each_copy(state, slices_, [&](std::byte* to, const std::byte* from, Space, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += kPartBytes)
      parts_.push_back({to + at, from + at, std::min(kPartBytes, bytes - at)});
  });
  taken_ = made_ = parts_.size();
}

void StateSnapshot::begin(const RankState& state, Device& device, StreamId stream) {
  if (device.unified()) {
    made_ = 0;
    taken_ = 0;
    return;
  }
  for_each_copy(state, slices_, [&](std::byte* to, const std::byte* from, Space space, std::size_t bytes) {
    device.copy(stream, to, Space::host, from, space, Bytes(static_cast<std::int64_t>(bytes)));
  });
  copied_ = device.record(stream);
}

void StateSnapshot::help(const std::function<void()>& taken) {
  bool first = true;
  for (std::size_t i = 0; (i = taken_.fetch_add(1)) < parts_.size();) {
    if (std::exchange(first, false) && taken) taken();
    std::memcpy(parts_[i].to, parts_[i].from, parts_[i].bytes);
    if (made_.fetch_add(1) + 1 == parts_.size()) made_.notify_all();
  }
}

void StateSnapshot::finish(Device& device) {
  if (copied_) return device.synchronize(*copied_);
  help();
  for (std::size_t made = 0; (made = made_) < parts_.size();) made_.wait(made);
}

void copy_out(const RankState& state, Device& device, std::size_t bucket, StateField field,
              std::span<std::byte> to) {
  for_each_part(state, bucket, field, to, [&](const std::byte* from, Space, std::span<std::byte> part) {
    device.transfer(part.data(), from, Bytes(static_cast<std::int64_t>(part.size())));
  });
}

void restore(const RankState& state, Device& device, const Checkpoint& checkpoint) {
  const Dtype dtype = checkpoint.manifest().dtype;
  if (dtype != state.accumulator())
    throw ConfigError(Problem{(checkpoint.path() / kManifestName).string(), "dtype", std::string(name(dtype)),
                              std::string(name(state.accumulator())),
                              "the plan's training.compute asks for another format of the optimizer state"});
  fill(state, device,
       [&](StateField field, const ModelSlice& slice, ElementRange range, std::span<std::byte> out) {
         checkpoint.read(field, slice, range, out);
       });
}

void fill(const RankState& state, Device& device, const StateReader& read) {
  const Dtype dtype = state.accumulator();
  const std::int64_t element = size_bytes(dtype);
  std::vector<std::byte> slice;
  for (std::size_t b = 0; b < state.layout().buckets.size(); ++b) {
    for (const StateField field : kStateFields) {
      slice.assign(static_cast<std::size_t>(state.slice(b) * element), std::byte{0});
      state.for_each_piece(b, [&](std::size_t p, ElementRange range) {
        const std::int64_t first = state.begin_in_slice(b, p, range), n = range.end - range.begin;
        read(field, state.slice_of(p), {first, first + n},
             part_of(std::span(slice), range.begin, n, element));
      });
      for_each_part(state, b, field, slice, [&](std::byte* to, Space space, std::span<std::byte> from) {
        const auto bytes = static_cast<std::int64_t>(from.size());
        device.transfer(to, from.data(), Bytes(bytes));
        if (field == StateField::master)
          state.adopt_master(b, space == Space::host, {from.data(), dtype, 1, bytes / element});
      });
    }
  }
}

}  // namespace sextant
