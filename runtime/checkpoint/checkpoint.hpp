// A committed checkpoint, to be read under any layout: by tensor and place in the model. Trusts nothing: a piece is
// checked against its digest before its first use, and what is wrong is a ConfigError that names file, tensor and extent and
// offers the checkpoint before. Reads only the extents asked for. One object may serve many threads.
//
//   const Checkpoint c = Checkpoint::open("run");   // the newest complete one of a run's folder
//   c.manifest().plan.model;                        // what was trained
//   WeightSource weights = c.weights();             // its master weights; `c` must outlive it
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/checkpoint/manifest.hpp"
#include "runtime/execution/rank_state.hpp"

namespace sextant {

// What a checkpoint is opened for: in its words an earlier one is offered when it is damaged.
enum class CheckpointUse : std::uint8_t { go_on, read_weights };

class Checkpoint {
 public:
  // Of a run's folder the newest complete checkpoint, or that of `step`. Throws ConfigError when there is none.
  static Checkpoint open(const std::filesystem::path& run, std::optional<std::int64_t> step = {},
                         CheckpointUse = CheckpointUse::go_on);
  // Nothing when the folder holds no checkpoint at all.
  static std::optional<Checkpoint> open_newest(const std::filesystem::path& run,
                                               CheckpointUse = CheckpointUse::go_on);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const Manifest& manifest() const;
  const std::filesystem::path& path() const;

  // Elements [begin, end) of a slice of any tensor-parallel layout, in manifest().dtype, exactly as stored; elements that
  // are padding stay as they are.
  void read(StateField, const ModelSlice&, ElementRange, std::span<std::byte>) const;
  WeightSource weights() const;
  void verify() const;                 // every byte of every file
  std::int64_t bytes_checked() const;  // against their digests so far, which is what has been read

  // Throws ConfigError unless the checkpoint is one of this model; `asked` is what the message calls the model's file.
  void require_model(const ModelSpec&, const std::string& asked) const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sextant
