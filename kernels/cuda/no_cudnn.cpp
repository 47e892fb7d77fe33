// Linked instead of attention_cudnn.cpp when cuDNN's headers were not found: attention runs in own tiles.
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/libraries.hpp"

namespace sextant::cuda {

void attention_forward(const AttentionForwardArgs& g) { attention_forward_tiles(g); }
void attention_backward(const AttentionBackwardArgs& g) { attention_backward_tiles(g); }
std::string attention_library() { return ""; }

}  // namespace sextant::cuda
