// What a file of another framework says about a training run, before the cluster is known: each value only where the file states
// it or the framework's default is certain.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

struct ImportedFormats {
  std::optional<Dtype> compute, parameter, gradient, reduction, optimizer_state;
};

struct ImportedRun {
  std::string file;
  std::string what;                // "a Megatron-LM command line"
  std::string stack;               // preset of the software stack that predicts it
  std::optional<ModelSpec> model;  // vocab_size 0: the file does not say it
  std::string model_name;          // instead: a preset or folder that the file names
  std::optional<int> seq_len, global_batch;
  std::optional<int> accumulation;  // micro-batches of a step and replica, where that is what the file states
  std::optional<int> gpus;          // that its launcher starts
  ImportedFormats formats;
  double whole_logits_bytes =
      0;  // a logit, where its version computes the loss of all tokens at once; 0: as the stack does
  ParallelPlan plan;                 // without dp, shard_degree
  std::optional<int> dp;             // stated; otherwise what is left of the GPUs
  int state_copies = 1;              // groups of replicas that each hold a whole sharded state
  bool shards_in_node = false;       // state is sharded over the GPUs of a node
  bool micro_is_rest = false;        // micro_batch is what the global batch leaves each replica
  bool overlap_stated = false;       // otherwise overlap is what the stack does
  int shard_ranks = 0;               // ranks over which state is sharded, where that is what the file states
  std::vector<std::string> assumed;  // "vocab_size 32000 (Llama2Tokenizer)"
  std::vector<std::string> unread;   // what may change the step and was not understood, as written
};

// The run on so many GPUs: dp, shard degree, micro-batch and global batch filled in. Throws ConfigError where they do not divide.
struct SizedRun {
  ParallelPlan plan;
  int global_batch = 0;  // 0: not stated
  std::vector<std::string> notes;
};
SizedRun size_run(const ImportedRun&, int gpus, int gpus_per_node);

// What the file leaves open about overlap, as the stack does it.
void suit_stack(const ImportedRun&, const StackCapabilities&, ParallelPlan&);

// What the version that the file is of does otherwise than the stack's.
void suit_version(const ImportedRun&, StackSpec&);

// Formats that the file states replace those of `training`.
void use_formats(const ImportedFormats&, TrainingSpec& training);

// For people: what was read, which stack predicts it, what was assumed and what was not understood.
std::vector<std::string> import_notes(const ImportedRun&, const StackSpec&);

}  // namespace sextant
