// How many measured runs are like a layout? Counts of published runs by software stack, generation of devices and kinds of
// parallelism, with the largest degrees among them: summaries, no run can be read from them. They stand in
// tools/presets/calibration/evidence.json; `sextant validate RUNS --write-evidence FILE` writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/plan/parallel_plan.hpp"

namespace sextant {

// Runs that use the same kinds of parallelism. Two cells are of one kind when the first seven fields are equal.
struct EvidenceCell {
  std::string stack, generation;
  bool tp = false, pp = false, cp = false, offload = false;
  int zero_stage = 0;  // 0 where nothing is sharded
  int runs = 0;
  int most_tp = 1, most_pp = 1, most_cp = 1, most_vp = 1, most_gpus = 1;
  int fewest_cp_tokens = 0;  // of a sequence on one of its context-parallel ranks; 0 without CP
  bool operator==(const EvidenceCell&) const = default;
};
EvidenceCell evidence_cell(const std::string& stack, const std::string& generation, const ParallelPlan&,
                           int seq_len);
// Adds one run to its kind.
void add_run(std::vector<EvidenceCell>&, const EvidenceCell& run);

// Whose runs on a generation of devices use the kinds of parallelism of a layout, or these and more?
enum class LikeRuns : std::uint8_t { of_family, of_others, none };

// Runs of its code that make a kind of layout one that people run.
inline constexpr int kWellKnown = 5;

struct Evidence {
  int near = 0;           // runs of this kind on this generation of devices, of any stack
  int near_of_stack = 0;  // of those, of stacks of this family: what is built on the same code
  int near_own = 0;       // of those, of the stack itself
  int of_stack = 0;       // all runs of the family
  // Runs that use these kinds, and perhaps more of tensor, pipeline and context parallelism: what is left out of a measured
  // combination is nothing new. Of any stack, and of the family.
  int covering = 0, covering_of_stack = 0;
  // What goes beyond every run of the family (of any stack where it has too few): "CP8 (measured to 4)".
  std::vector<std::string> extrapolates;
  // Those of them that are far: beyond not_far(), and slices of sequences kFarBeyond times as short.
  std::vector<std::string> far;
  double doublings = 0;  // of degrees, and halvings of slices, by which it goes beyond, all together

  bool well_known() const { return near_of_stack >= kWellKnown; }
  LikeRuns like_runs() const {
    return covering_of_stack > 0 ? LikeRuns::of_family : covering > 0 ? LikeRuns::of_others : LikeRuns::none;
  }
};
// Degrees up to some times what was measured are what people try next; beyond, nobody knows.
inline constexpr int kFarBeyond = 4;

struct EvidenceTable {
  std::vector<std::vector<std::string>> families;  // stacks built on the same code; the others stand alone
  std::vector<EvidenceCell> cells;
  bool one_family(const std::string& stack, const std::string& other) const;
  // The largest degrees among runs of the family; of any stack where it has too few to say what people try.
  EvidenceCell largest(const std::string& stack) const;
  // Up to which a degree is not far from them: kFarBeyond times; where the family has none, what runs of any stack have.
  EvidenceCell not_far(const std::string& stack) const;
  // Among runs of any stack: what a slice of a sequence costs is attention's, not the framework's. 0: there are none with CP.
  int fewest_cp_tokens() const;
  Evidence of(const std::string& stack, const std::string& generation, const ParallelPlan&,
              int seq_len) const;
};

// Throws ConfigError naming the file.
EvidenceTable load_evidence(const std::filesystem::path& preset_dir);
std::string evidence_json_text(const EvidenceTable&);

}  // namespace sextant
