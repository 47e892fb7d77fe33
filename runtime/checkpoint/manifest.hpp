// What is in a checkpoint, in model space: how far the run was, under which plan, and which extent of which tensor lies in
// which file, each with its digest. Says nothing about where a reader's own layout puts it.
//
// manifest.json is one JSON object whose first line holds the digest of all bytes after that line.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/plan/plan_file.hpp"
#include "runtime/checkpoint/extent.hpp"
#include "runtime/execution/trainer/rank_trainer.hpp"

namespace sextant {

inline constexpr const char* kCheckpointSchema = "sextant.checkpoint/1";
inline constexpr const char* kManifestName = "manifest.json";
// By StateField; as PyTorch's Adam calls the moments.
inline constexpr std::array<std::string_view, 3> kStateNames = {"master", "exp_avg", "exp_avg_sq"};

// A rectangle of a tensor: its master weights and both moments are three tensors of the file.
struct StoredExtent {
  std::string tensor;  // Hugging Face name
  Extent extent;
  std::array<std::string, 3> digests = {};  // by StateField
  bool operator==(const StoredExtent&) const = default;
};
// What the file calls one of the three: "exp_avg/model.norm.weight[0:1,0:64]".
std::string stored_name(const StoredExtent&, StateField);

struct StoredFile {
  std::string name;
  std::int64_t bytes = 0;
  std::string header;  // digest of everything before the data
  std::vector<StoredExtent> extents;
  bool operator==(const StoredFile&) const = default;
};

struct Manifest {
  TrainerClock clock;
  Dtype dtype = Dtype::fp32;  // of the stored state
  OptimizerSpec optimizer;
  std::int64_t seed = 0;
  PlanFile plan;               // under which it was saved
  std::string data = "{}";     // a JSON object: where the source of tokens was, in its own words
  std::string options = "{}";  // the same of the options of the run; empty: not known
  std::vector<StoredFile> files;
  bool operator==(const Manifest&) const = default;
};

// The extents of one file, as it carries them in its own metadata.
std::string extents_text(std::span<const StoredExtent>);
std::vector<StoredExtent> parse_extents(std::string_view text, const std::string& file);

void to_json(nlohmann::json&, const OptimizerSpec&);
void from_json(const nlohmann::json&, OptimizerSpec&);

// Every tensor of the plan's model is there, each element once, and nothing else.
std::vector<Problem> validate(const Manifest&);

// A text that begins with the digest of `rest`, which begins behind the brace of an object.
std::string with_digest(std::string_view rest);
std::string manifest_text(const Manifest&);
// Throws ConfigError naming `file`: damaged, not a manifest, or one whose parts contradict each other.
Manifest parse_manifest(std::string_view text, const std::string& file);

}  // namespace sextant
