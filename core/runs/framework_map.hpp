// Which software stack and which cluster did a published run use? Its framework text and date select a stack
// preset; a framework nobody named gets the nearest class by what the row states, and a wider interval. What
// the row states about kernels and overlap then replaces what the preset says; where a rule knows better than the
// row, or takes something unknown for its nearest kin, the note says so. Rules are data:
// tools/presets/framework_map.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "core/plan/stack_spec.hpp"
#include "core/runs/measured_range.hpp"
#include "core/runs/presets_read.hpp"
#include "core/runs/run_row.hpp"

namespace sextant {

// How a framework lays layers over stages when they do not divide.
enum class LayerSplit : std::uint8_t {
  even,  // where the layers do not divide, embedding and head count as one layer each if the whole then does;
         // otherwise the first stages take the remainder
  by_cost,  // blocks are dealt by weight, the head with its own, until each stage's share is full
};

struct StackRule {
  std::string framework;  // words that the row's framework contains, in any case; empty = any
  std::string from;       // first date, inclusive ("2023-10"); empty = any
  std::string precision;  // of the GEMMs; empty = any
  std::string notes;      // a word of the row's notes ("compiler"); empty = any
  std::string overlap;    // "yes" or "no": the row states gradient overlap or none; empty = any
  // Reductions of gradients and gathers of parameters run beside the passes where the row does not say whether they do.
  bool overlaps_unless_stated = true;
  int min_zero = 0;  // class rules: at least this ZeRO stage
  int max_tp = 1 << 20;
  int max_pp = 1 << 20;
  std::string attention;  // class rules: kernel that the row states
  std::string norm;       // class rules: "fused" or "unfused", as the row states its norm
  std::string tp_hidden;  // class rules: "yes" or "no", as the row states the overlap of TP communication
  std::string stack;      // preset
  LayerSplit split = LayerSplit::even;
  int zero_stage = -1;      // the stage this stack calls what the row calls otherwise; -1 = as stated
  std::string memory_kind;  // what the framework's printed peak counts, where the row does not know
  double whole_logits_bytes =
      0;             // a logit, where its loss was not yet in chunks as the stack's is; 0: as the stack's
  bool kin = false;  // the stack is another framework's, the nearest: a wider interval
};

struct ClusterRule {
  std::string fabric;          // text that words of the row's fabric begin with, in any case
  std::string framework, gpu;  // and words of the row's framework and device; empty = any
  std::string cluster;         // cluster preset whose nodes these are; or
  std::string preset;          // fabric preset
  // Of a family the words may state ports: "hdr" and "4x200" are hdr-4x200, or `preset` at that rate where there is none.
  std::string family;
  double port_Gbps = 0;  // of a port whose rate the words leave out; 0 = they cannot
};

struct FrameworkMap {
  std::vector<StackRule> frameworks;  // the first that fits
  std::vector<StackRule> classes;     // the first that fits, when no framework does
  std::vector<ClusterRule> clusters;
  // Intervals of class predictions, and of what lies far from all that was measured, are this much wider.
  double class_interval = 1.0;
  std::vector<MeasuredRange> measured;
  std::vector<std::string> measured_stacks;  // of these runs, and what is one of them of another date
  PresetsRead presets = {};                  // as rows were resolved with them first
};

FrameworkMap load_framework_map(const std::filesystem::path& preset_dir);

// A row with everything decided.
struct ResolvedRun {
  ModelSpec model;
  TrainingSpec training;
  ParallelPlan plan;
  ClusterSpec cluster;
  StackSpec stack;
  bool by_class = false;  // nobody named this framework
  double interval = 1.0;
  std::string note = {};
  std::string memory_kind = {};  // what its measured peak counts
};

// Throws ConfigError when the row's device or the rule's preset does not exist.
ResolvedRun resolve(const RunRow&, const FrameworkMap&, const std::filesystem::path& preset_dir);

// How the first framework that runs on this stack deals layers to stages.
LayerSplit split_of(const FrameworkMap&, std::string_view stack);
// Why a run lies far from all that was measured: its stack, or far_from_measured. Empty when it does not.
std::string far_from_runs(const FrameworkMap&, const ModelSpec&, const TrainingSpec&, const ClusterSpec&);
// Layers of every chunk by the rule; empty when they divide evenly.
std::vector<LayerRange> split_layers(const ModelSpec&, int chunks, LayerSplit);

}  // namespace sextant
