// A run of a small model on one node of H100, for tests of what runs tell the constants.
#pragma once

#include "core/runs/run_row.hpp"

namespace sextant {

inline RunRow small_row(int hidden, int micro_batch, int tp, int pp = 1) {
  RunRow r;
  r.run_id = r.source = "own";
  r.framework = "Megatron-LM";
  r.date = "2023";
  r.model.n_layers = 8;
  r.model.hidden = hidden;
  r.model.n_heads = r.model.n_kv_heads = hidden / 128;
  r.model.head_dim = 128;
  r.model.ffn_hidden = 3 * hidden;
  r.model.vocab_size = 32000;
  r.training.seq_len = 4096;
  r.training.global_batch = 64;
  r.plan.micro_batch = micro_batch;
  r.plan.tp = tp;
  r.plan.pp = pp;
  r.plan.dp = 8 / (tp * pp);
  r.plan.zero_stage = 1;
  r.gpu = "H100-SXM5-80GB";
  r.fabric = "NVLink4 NVSwitch";
  r.gpus_per_node = 8;
  return r;
}

}  // namespace sextant
