// What is planned: the inputs that every candidate layout shares. References only; the owner outlives the planning.
#pragma once

#include "core/cluster/cluster_spec.hpp"
#include "core/cluster/topology.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/stack_spec.hpp"
#include "cost_models/cost_model.hpp"

namespace sextant {

struct UncertaintyRules;
struct Residual;

struct Job {
  const ModelSpec& model;
  const TrainingSpec& training;
  const ClusterSpec& cluster;
  const Topology& topology;
  const StackSpec& stack;
  const CostModel& cost;
  double interval =
      1.0;  // intervals of predictions are that many times as wide as of runs that were measured
  const UncertaintyRules* uncertainty =
      nullptr;                         // what intervals are made of; only predict() asks, and must have it
  const Residual* residual = nullptr;  // what a calibration learned of layouts beyond constants
  double residual_taken = 0;  // logarithm of the factor by which the costs above are less for it already
  // `cost` reads a table of measured works: no bound of a search holds, and predictions say what of them rests on it.
  bool profiled = false;

  // The same job on other machines, or with another stack, which must outlive it as all that it refers to must.
  Job on(const ClusterSpec& other, const Topology& its_topology) const {
    return {model,    training,    other,    its_topology,   stack,   cost,
            interval, uncertainty, residual, residual_taken, profiled};
  }
  Job with(const StackSpec& other) const {
    return {model,    training,    cluster,  topology,       other,   cost,
            interval, uncertainty, residual, residual_taken, profiled};
  }
};

}  // namespace sextant
