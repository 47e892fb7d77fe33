#include "planner/calibration/log_model.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

using Named = std::pair<const char*, const char*>;
constexpr std::array kCounts = {Named{"num_query_groups", "kv_heads"}, Named{"kv_channels", "head_dim"},
                                Named{"padded_vocab_size", "vocab"}, Named{"vocab_size", "plain_vocab"},
                                Named{"make_vocab_size_divisible_by", "vocab_multiple"}};
constexpr std::array kSwitches = {Named{"group_query_attention", "grouped_queries"},
                                  Named{"swiglu", "gated_mlp"},
                                  Named{"gated_linear_unit", "gated_mlp"},
                                  Named{"untie_embeddings_and_output_weights", "untied"},
                                  Named{"add_bias_linear", "biases"},
                                  Named{"qk_layernorm", "qk_norm"}};

}  // namespace

void read_model_setting(std::string_view key, std::string_view value, RunLog& log) {
  for (const auto& [name, column] : kCounts)
    if (key == name)
      if (const auto n = whole_number(value); n && *n > 0) log.says[column] = *n;
  for (const auto& [name, column] : kSwitches)
    if (key == name && (value == "True" || value == "true" || value == "False" || value == "false"))
      log.says[column] = value == "True" || value == "true" ? 1 : 0;
}

void read_padded_vocabulary(std::string_view line, RunLog& log) {
  if (line.find("added vocab (size:") == std::string_view::npos) return;
  if (const auto n = count_after(line, "added vocab (size:"); n && *n >= 1) log.says["plain_vocab"] = *n;
  if (const auto n = count_after(line, "(new size:"); n && *n >= 1) log.says["vocab"] = *n;
}

std::vector<Problem> of_another_shape(const RunLog& log, const ModelSpec& model, const ParallelPlan& plan) {
  std::vector<Problem> problems;
  const auto differs = [&](const char* column, const std::string& found, const std::string& expected) {
    problems.push_back({log.place_of(column), column, found,
                        fmt::format("{}, as {} has", expected, model.name),
                        "--model names the model that was trained, or a file with its shape"});
  };
  // Without grouped queries Megatron-LM prints one group all the same.
  const auto grouped = log.said("grouped_queries");
  if (const auto groups = log.said("kv_heads"); groups || grouped == 0) {
    const std::int64_t heads = grouped == 0 ? model.n_heads : *groups;
    if (heads != model.n_kv_heads)
      differs(grouped == 0 ? "grouped_queries" : "kv_heads",
              grouped == 0 ? "no grouped queries" : fmt::format("{}", heads),
              fmt::format("{} heads of keys and values", model.n_kv_heads));
  }
  if (const auto width = log.said("head_dim"); width && *width != model.head_dim)
    differs("head_dim", fmt::format("{}", *width), fmt::format("{} a head", model.head_dim));
  if (const auto gated = log.said("gated_mlp"); gated && (*gated == 1) != model.gated_mlp)
    differs("gated_mlp", *gated == 1 ? "on" : "off", model.gated_mlp ? "a gated MLP" : "a plain MLP");
  // Tokenizers add a few hundred words of their own, and rows are padded to a multiple for each tensor rank.
  constexpr std::int64_t kAdded = 512;
  const std::int64_t multiple = log.said("vocab_multiple").value_or(128) * std::max(1, plan.tp),
                     vocabulary = model.vocab_size;
  if (const auto plain = log.said("plain_vocab");
      plain && (*plain < vocabulary - kAdded || *plain > vocabulary + std::max(kAdded, multiple)))
    differs("plain_vocab", fmt::format("a vocabulary of {}", *plain), fmt::format("{}", vocabulary));
  else if (const auto padded = log.said("vocab");
           padded && (*padded < vocabulary - kAdded || *padded > vocabulary + kAdded + multiple))
    differs("vocab", fmt::format("a padded vocabulary of {}", *padded),
            fmt::format("{}, padded to a multiple of {}", vocabulary, multiple));
  return problems;
}

std::vector<std::string> take_forms(const RunLog& log, ModelSpec& model) {
  std::vector<std::string> notes;
  if (const auto untied = log.said("untied"); untied && (*untied == 0) != model.tied_embeddings) {
    model.tied_embeddings = *untied == 0;
    notes.push_back(fmt::format("the head {} the embedding's matrix, as the log states",
                                model.tied_embeddings ? "shares" : "does not share"));
  }
  if (const auto biases = log.said("biases"); biases && (*biases == 1) != model.linear_bias)
    notes.push_back(fmt::format("linear layers {} biases, as the log states: priced as {} has them",
                                *biases == 1 ? "have" : "have no", model.name));
  if (const auto norms = log.said("qk_norm"); norms && (*norms == 1) != (model.qk_norm != QkNorm::none))
    notes.push_back(fmt::format("queries and keys are {}, as the log states: priced as {} has them",
                                *norms == 1 ? "normalized" : "not normalized", model.name));
  return notes;
}

}  // namespace sextant
