// A log as Megatron-LM prints it, and its model.
#pragma once

#include "core/model/model_spec.hpp"

namespace sextant {

inline constexpr const char* kMegatron =
    R"(using world size: 64, data-parallel size: 16, tensor-model-parallel size: 2
------------------------ arguments ------------------------
  context_parallel_size ........................... 1
  data_parallel_size .............................. 16
  ffn_hidden_size ................................. 13824
  global_batch_size ............................... 1024
  hidden_size ..................................... 5120
  lr .............................................. 0.0003
  micro_batch_size ................................ 1
  num_attention_heads ............................. 40
  num_layers ...................................... 40
  num_layers_per_virtual_pipeline_stage ........... 10
  pipeline_model_parallel_size .................... 2
  recompute_granularity ........................... selective
  seq_length ...................................... 4096
  sequence_parallel ............................... True
  tensor_model_parallel_size ...................... 2
  use_distributed_optimizer ....................... True
-------------------- end of arguments ---------------------
[rank0]: [2026-02-03 04:05:06] iteration        1/     100 | consumed samples:         1024 | elapsed time per iteration (ms): 91234.5 | throughput per GPU (TFLOP/s/GPU): 60.1 | learning rate: 3.000000E-06 | global batch size:  1024 | lm loss: 1.035E+01 | loss scale: 1.0 | grad norm: 9.1 |
[Rank 0] (after 1 iterations) memory (MB) | allocated: 10240.0 | max allocated: 51200.5 | reserved: 60000.0 | max reserved: 60000.0
 [2026-02-03 04:05:36] iteration        2/     100 | consumed samples:         2048 | elapsed time per iteration (ms): 30100.0 | learning rate: 3.000000E-06 | global batch size:  1024 | lm loss: 1.02E+01 |
 [2026-02-03 04:06:06] iteration        3/     100 | consumed samples:         3072 | elapsed time per iteration (ms): 30000.0 | learning rate: 3.000000E-06 | global batch size:  1024 | lm loss: 1.01E+01 |
 [2026-02-03 04:06:36] iteration        4/     100 | consumed samples:         4096 | elapsed time per iteration (ms): 29900.0 | learning rate: 3.000000E-06 | global batch size:  1024 | lm loss: 1.01E+01 |
 [2026-02-03 04:07:06] iteration        5/     100 | consumed samples:         5120 | elapsed time per iteration (ms): 29950.0 | learning rate: 3.000000E-06 | global batch size:  1024 | lm loss: 1.00E+01 |
)";

inline ModelSpec llama_13b() {
  ModelSpec m;
  m.n_layers = 40;
  m.hidden = 5120;
  m.n_heads = m.n_kv_heads = 40;
  m.head_dim = 128;
  m.ffn_hidden = 13824;
  return m;
}

}  // namespace sextant
