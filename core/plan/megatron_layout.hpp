// Layers per model chunk as Megatron-Core's options state them: the layout string and the first and last stage's own numbers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

// "Ett|(ttt|)*6ttL" as 2, 3, 3, ..., 2: t a layer, | between chunks, E and L the embedding and the head, (...)*n and t*n repeated.
// Nothing where it is no such string, or holds other kinds of layers. Source: NVIDIA/Megatron-LM d98e8a6,
// core/transformer/pipeline_parallel_layer_layout.py.
std::optional<std::vector<int>> layout_layers(std::string_view layout);

// What counts as a layer of the first and of the last chunk (--account-for-embedding-in-pipeline-split,
// --account-for-loss-in-pipeline-split).
struct CountedAsLayers {
  bool embedding = false, head = false;
};
// Layers of so many chunks. Nothing where that does not divide.
std::optional<std::vector<int>> accounted_layers(int layers, int chunks, const CountedAsLayers&);

// --decoder-first-pipeline-num-layers and -last-: 0 where not stated; the others share the rest equally. Each stage's are cut
// into equal chunks, one for each virtual stage; nothing where that does not divide.
std::optional<std::vector<int>> first_last_layers(int layers, int stages, int virtual_stages, int first,
                                                  int last);

}  // namespace sextant
