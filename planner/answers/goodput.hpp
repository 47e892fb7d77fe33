// What do checkpoints cost, how often should one be written, and what share of wall-clock time becomes lasting progress
// when nodes fail? Closed forms over a step time; no search and no simulation here.
//
// Failures come at a constant rate 1/M of the whole job, M = node MTBF / nodes used (independent exponential lifetimes).
// A checkpoint is asked for every tau seconds of training. It pauses training for d, and is safe only w seconds later,
// while training goes on (a blocking save: d is the whole save, w = 0). After a failure the job needs r seconds to be
// where its last safe checkpoint was; a failure during that starts it again.
//
//   lifetimes between failures see floor((X - w) / (tau + d)) checkpoints, X exponential of mean M, so
//   goodput = tau exp(-w/M) / ((exp((tau + d)/M) - 1) M exp(r/M))
//
// which for w = 0 is the complete model of Daly (2006, "A higher order estimate of the optimum checkpoint interval for
// restart dumps", eq. 20) turned into a share. Its maximum over tau does not depend on r and w:
//
//   x - 1 + exp(-x) = d/M,   tau = x M - d,
//
// of which sqrt(2 d M) (Young 1974, "A first order approximation to the optimum checkpoint interval") and Daly's
// higher-order estimate are expansions for d << M. A save must end before the next begins: tau + d >= w.
//
// Ignores: failures that come in groups or with the machine's age, spares that run out, silent errors, and slower steps
// while a checkpoint is written in the background.
#pragma once

#include <cstdint>
#include <optional>

#include "core/plan/plan_file.hpp"
#include "planner/lowering/job.hpp"

namespace sextant {

// What a checkpoint of the whole job holds, each element once whatever the layout: the master copy in fp32 (fp64 where
// parameters are), two moments in the optimizer's format, and, where the stack writes them (checkpoint_parameters) and
// their format is another, the parameters. Without file headers.
struct CheckpointSize {
  std::int64_t elements = 0;
  Bytes master, moments, parameters;
  Bytes total() const { return master + moments + parameters; }
};
CheckpointSize checkpoint_size(const ModelSpec&, const TrainingSpec&, const StackSpec&);

// Of one job, in seconds. `mtbf` is the job's: that of a node divided by the nodes.
struct FailureModel {
  Seconds mtbf, pause, lag, restart;  // M, d, w, r above
};

enum class SaveKind : std::uint8_t { asynchronous, blocking };

// One checkpoint. Nothing where the cluster's storage is not stated. Every rank copies an equal share to its host memory
// (`pause`; stages of unequal size are not told apart), then all nodes write together. Restarting reads it all once.
struct SaveTimes {
  Seconds copy, write, read;
  Seconds pause(SaveKind kind) const { return kind == SaveKind::blocking ? copy + write : copy; }
};
std::optional<SaveTimes> save_times(const Job&, int ranks);

// Nothing where the cluster's storage or failures are not stated.
std::optional<FailureModel> failure_model(const Job&, int ranks, SaveKind);

// Share of wall-clock time that becomes lasting progress when a checkpoint is asked for every `interval`.
double goodput_share(const FailureModel&, Seconds interval);
Seconds best_interval(const FailureModel&);  // maximises it; 0 when a checkpoint costs nothing

Seconds young_interval(const FailureModel&);  // Young 1974, eq. 5
Seconds daly_interval(const FailureModel&);   // Daly 2006, eq. 37; M where the pause is 2 M or more

// Where a second of wall clock goes; the four sum to 1.
struct GoodputSplit {
  double lasting = 0, saving = 0, redone = 0, restarting = 0;
};
GoodputSplit goodput_split(const FailureModel&, Seconds interval);

// The best interval in whole steps and what it leaves. For a fixed model, cluster and number of ranks the failure model
// does not depend on the layout, so the fastest layout has the most lasting tokens per second: a search by step time
// stays exact for goodput. Across numbers of ranks M, the pause and the restart differ.
std::optional<PlanGoodput> goodput(const Job&, const ParallelPlan&, Seconds step,
                                   SaveKind = SaveKind::asynchronous);

}  // namespace sextant
