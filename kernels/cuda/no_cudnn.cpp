// Linked instead of attention_cudnn.cpp when cuDNN's headers were not found: attention runs in own tiles.
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/libraries.hpp"

namespace sextant::cuda {

void attention_forward(const AttentionForwardArgs& g) { attention_forward_tiles(g); }
void attention_backward(const AttentionBackwardArgs& g) { attention_backward_tiles(g); }
std::string attention_library() { return ""; }

}  // namespace sextant::cuda

namespace sextant {

std::string attention_fallback() { return "built without cuDNN"; }
std::string attention_second_choice() { return ""; }
std::string attention_refusal(const AttentionShape&, const std::string&) { return "built without cuDNN"; }

}  // namespace sextant
