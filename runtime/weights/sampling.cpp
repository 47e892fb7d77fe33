#include "runtime/weights/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

std::int32_t sample_token(std::span<const double> logits, const SamplingSpec& spec, std::mt19937_64& random) {
  for (const double x : logits)
    if (!std::isfinite(x))
      throw BackendError(
          "a logit is not finite: the weights overflow in this number format; try --dtype fp32");
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (spec.temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(),
                           [&](std::int32_t i) { return logits[static_cast<std::size_t>(i)]; });
  std::vector<double> weight;
  double all = 0;
  for (const std::int32_t i : order) {
    weight.push_back(std::exp((logits[static_cast<std::size_t>(i)] - *likeliest) / spec.temperature));
    all += weight.back();
  }
  std::size_t kept = 0;
  double sum = 0;
  while (kept < weight.size() && (kept == 0 || sum < spec.top_p * all)) sum += weight[kept++];
  double at = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
  for (std::size_t i = 0; i < kept; ++i)
    if ((at -= weight[i]) < 0) return order[i];
  return order[kept - 1];
}

Continuation continue_text(LlamaForward& model, std::span<const std::int32_t> prompt, std::int64_t max_tokens,
                           const SamplingSpec& spec, std::span<const std::int32_t> end,
                           const std::function<bool(std::int32_t)>& on_token) {
  std::mt19937_64 random(spec.seed);
  Continuation text;
  std::vector<double> logits = model.extend(prompt);
  while (static_cast<std::int64_t>(text.tokens.size()) < max_tokens) {
    const std::int32_t token = sample_token(logits, spec, random);
    if (std::ranges::find(end, token) != end.end()) {
      text.ended = true;
      break;
    }
    text.tokens.push_back(token);
    if (on_token && !on_token(token)) break;
    if (model.length() == model.capacity()) {
      text.full = true;
      break;
    }
    if (static_cast<std::int64_t>(text.tokens.size()) < max_tokens) logits = model.extend({&token, 1});
  }
  return text;
}

}  // namespace sextant
