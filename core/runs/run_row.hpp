// One published or own training run: what was trained, where, with which layout, and what was measured. Read
// from the CSV schema of the measured runs (columns in docs of `sextant validate`); derived columns are not
// trusted but recomputed, tokens_per_s_per_gpu apart where a step has no time. Which software stack it ran on is decided
// by core/runs/framework_map.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/csv.hpp"
#include "core/base/units.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

struct RunRow {
  std::string file;
  int line = 0;
  std::string run_id, source, date, framework, group_id, notes;
  char quality = 'b';  // a, b, c

  ModelSpec model;
  TrainingSpec training;  // `stack` is empty: not stated by a row
  ParallelPlan plan;      // overlap flags hold only where they are stated

  std::string gpu, fabric;  // device preset; links in words
  std::string precision;    // as stated: training.compute is its number format
  int nodes = 1, gpus_per_node = 1;
  std::optional<BytesPerSecond> node_network;  // nominal, one node, one direction

  // What the row says about the software; empty = not stated.
  std::optional<AttentionKernel> attention;
  std::optional<bool> norm_fused;
  std::optional<Dtype> gradient;
  bool overlap_stated = false;       // of anything
  bool data_overlap_stated = false;  // of data parallelism: a list of tp or pp alone says nothing about it
  bool recompute_by_operation =
      false;                         // its selective policy is one of operations, not of the attention core
  std::vector<std::string> assumed;  // columns that the source does not state

  std::optional<Seconds> step_time;
  std::optional<double> peak_memory_GiB;
  std::string memory_kind;
  bool out_of_memory = false;
  std::string
      unreadable;  // what is wrong with its cells, when bad rows are kept: then only the names above count
};

// Read leniently where the meaning is clear: 4096.0 is a whole number, words may be in capitals, what was measured may
// have no column. Throws ConfigError naming file, line, column, what was found and what is expected: for all rows at
// once. Other columns that are missing, and files without a sound row, are refused in any case.
std::vector<RunRow> runs_of(const CsvTable&, BadRows = BadRows::refuse);
std::vector<RunRow> read_runs(const std::filesystem::path&, BadRows = BadRows::refuse);

}  // namespace sextant
