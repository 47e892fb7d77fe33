// The next token of a text: from logits to a choice, and a continuation token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "runtime/weights/llama_forward.hpp"

namespace sextant {

// Temperature 0 takes the likeliest token (the first of equals). Otherwise probabilities are softmax(logits /
// temperature), restricted to the fewest likeliest tokens that together have at least top_p (nucleus sampling, Holtzman
// et al. 2020). The same seed gives the same text on every machine that computes the same logits.
struct SamplingSpec {
  double temperature = 1.0;
  double top_p = 1.0;
  std::uint64_t seed = 1;
};

std::int32_t sample_token(std::span<const double> logits, const SamplingSpec&, std::mt19937_64&);

struct Continuation {
  std::vector<std::int32_t> tokens;  // without the prompt and the ending token
  bool ended = false;                // by a token of `end`
  bool full = false;                 // the model's longest sequence was reached
};

// `prompt` is not empty. `on_token` sees each token as it is chosen and may say stop by returning false.
Continuation continue_text(LlamaForward&, std::span<const std::int32_t> prompt, std::int64_t max_tokens,
                           const SamplingSpec&, std::span<const std::int32_t> end = {},
                           const std::function<bool(std::int32_t)>& on_token = {});

}  // namespace sextant
