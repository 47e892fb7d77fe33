// The constants of the analytic cost model, one set per device generation. Values live in
// tools/presets/cost/common.json and <generation>.json (which overrides common), each with unit, origin,
// source and date; none has a default here. Origins: T taken from a kernel or collective table, F fitted to
// whole runs inside what tables allow, S data sheet, D documented behaviour, G judgement.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/error.hpp"

namespace sextant {

struct CostConstants {
  double time_factor = 0;  // of every duration: clock and power limits of a machine; 1 until it is calibrated
  // gemm
  double gemm_efficiency = 0;        // best sustained share of dense peak
  double gemm_tile_128 = 0;          // rate of 128x128 tiles relative to 256x128
  double gemm_tile_64 = 0;           // rate of 128x64 tiles relative to 256x128
  double gemm_depth_overhead = 0;    // elements of depth that filling and draining a tile costs
  double gemm_misaligned = 0;        // rate when a weight extent is not a multiple of 16
  double gemm_fp8_relative = 0;      // share of peak that fp8 GEMMs reach, over that of 16-bit ones
  double multiprocessor_TFLOPS = 0;  // dense 16-bit peak of one multiprocessor at its full clock; 0: not told
  double memory_efficiency = 0;      // reachable share of the data-sheet memory bandwidth
  // attention, TFLOP/s of a long causal head-dimension-128 pass
  double attention_flash1_TFLOPS = 0, attention_flash2_TFLOPS = 0, attention_flash3_TFLOPS = 0;
  double attention_cudnn_TFLOPS = 0, attention_triton_TFLOPS = 0;
  double attention_multiprocessors = 0;     // of the device that these rates are of; 0: of any
  double attention_half_length = 0;         // tokens at which half of the rate is reached
  double attention_half_length_flash1 = 0;  // the same for the first generation
  double attention_forward_factor = 0, attention_backward_factor = 0;
  double attention_head_96 = 0, attention_head_64 = 0, attention_head_small = 0;  // relative to 128
  double unfused_misaligned = 0;   // rate when the head dimension is no multiple of 8
  double unfused_score_bytes = 0;  // traffic per score, eager softmax
  double fused_score_bytes = 0;    // traffic per score, fused scale-mask-softmax
  // memory-bound passes
  double pointwise_hidden_passes = 0;        // residual-width passes per layer, times 2 bytes and k
  double pointwise_unfused_norm_passes = 0;  // more of them when the norm is eager
  double pass_backward_factor = 0;           // backward over forward traffic of a pass, scores included
  double pointwise_forward_launches = 0, pointwise_backward_launches = 0;  // per layer
  double loss_forward_share = 0;                                           // of the loss traffic
  double loss_forward_launches = 0, loss_backward_launches = 0;
  double embedding_backward_bytes = 0;  // per local table element
  double fp8_passes = 0;                // quantisation in either direction, bytes per token and channel
  // Passes of a ring of CP ranks, per step: bytes per element of the rank's queries, and of its keys and values.
  double ring_forward_query_bytes = 0, ring_forward_key_bytes = 0, ring_forward_launches = 0;
  double ring_backward_query_bytes = 0, ring_backward_key_bytes = 0, ring_backward_launches = 0;
  // host
  double host_share_norm = 0, host_share_qkv = 0;  // of one layer's launches; two norms
  double host_share_attention = 0, host_share_mlp = 0;
  double host_smoothing_power = 0;
  double host_copy_efficiency = 0;    // of the host link
  double host_update_efficiency = 0;  // of the host memory, CPU Adam
  // collectives
  double collective_start_us = 0;  // of a collective inside a node, alone, beside its protocol's latency
  double protocol_base_us = 0;     // of the Simple protocol; also of a transfer
  double collective_skew_us = 0;   // what ranks wait for each other inside a training step
  double collective_step_us = 0;   // ... and what each step of their ring adds, inside a node
  double link_efficiency = 0;      // switched links, all-gather and reduce-scatter
  double link_efficiency_in_switch = 0;  // all-reduce in the switch (NVLS): bus rate over link rate
  double link_efficiency_mesh = 0;       // direct links
  double ring_half_ranks = 0;            // rings of n ranks over a switch reach n / (n + this) of the links
  double network_hops_per_node = 0;      // hops between nodes of an all-reduce, over the nodes

  bool operator==(const CostConstants&) const = default;
};

// One constant as its file states it, for listings and for calibration.
struct ConstantRecord {
  std::string key, unit, origin, source, date;
  double value = 0, low = 0, high = 0;  // bounds of calibration; equal when it may not move
};

std::vector<Problem> validate(const ConstantRecord&);
void from_json(const nlohmann::json&, ConstantRecord&);

struct CostPreset {
  std::string generation;
  CostConstants constants;
  std::vector<ConstantRecord> records;
};

// Reads common.json and <generation>.json of `dir`. Throws ConfigError naming what is missing, unknown or not
// a positive number, and the known generations when the file does not exist.
CostPreset load_cost_preset(const std::string& generation, const std::filesystem::path& dir);

// Access by key, for calibration: throws ConfigError with a suggestion when the key is unknown.
double& constant(CostConstants&, const std::string& key);
std::vector<std::string> constant_keys();

}  // namespace sextant
