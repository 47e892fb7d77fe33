// One row of Megatron-LLaMA's table, for tests that change a field of it.
#pragma once

#include "core/runs/run_row.hpp"

namespace sextant {

inline RunRow llama_row() {
  RunRow r;
  r.run_id = "x";
  r.framework = "Megatron-LLaMA";
  r.date = "2023-10";
  r.model.n_layers = 40;
  r.model.hidden = 5120;
  r.model.n_heads = r.model.n_kv_heads = 40;
  r.model.head_dim = 128;
  r.model.ffn_hidden = 13824;
  r.model.vocab_size = 32000;
  r.plan.tp = 2;
  r.plan.dp = 16;
  r.plan.zero_stage = 1;
  r.plan.micro_batch = 4;
  r.training.global_batch = 2048;
  r.gpu = "A100-SXM4-80GB";
  r.nodes = 4;
  r.gpus_per_node = 8;
  r.fabric = "NVLink3 NVSwitch; 4x200 Gb/s RDMA";
  r.overlap_stated = r.data_overlap_stated = true;
  r.plan.overlap_grad_reduce = r.plan.overlap_param_gather = true;
  return r;
}

}  // namespace sextant
