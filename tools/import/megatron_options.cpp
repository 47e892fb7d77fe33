#include "tools/import/megatron_options.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <fnmatch.h>

#include "core/base/decimal.hpp"
#include "core/base/error.hpp"
#include "core/base/words.hpp"
#include "tools/import/shell_variables.hpp"

namespace sextant {

namespace {

// Patterns of what the step does not depend on, or what the software stack counts with anyhow.
constexpr std::string_view kMegatronNoEffect =
    "--lr --lr-* --min-lr --decoupled-* --warmup* --train-* --log-* --save* --load* --eval-* "
    "--valid-* --test-* --*-path --*-dir --tokenizer-* --tiktoken-* --vocab-file --merge-file "
    "--split --adam-* --weight-decay* --start-weight-* --end-weight-* --clip-grad --init-method-* "
    "--seed --num-workers --exit-* --tensorboard-* --wandb-* --ckpt-* --no-load-* --no-save-* "
    "--dataloader-* --data-* --attention-dropout --hidden-dropout --distributed-* --master-* "
    "--node-rank --profile* --mock-data --use-mcore-models   "
    "--use-flash-attn* --fp8-amax-* --fp8-margin --fp8-interval --fp8-recipe --manual-gc* "
    "--empty-unused-memory-level --cross-entropy-* --timing-* --reset-* --eod-mask-loss "
    "--override-opt* --use-checkpoint-* --loss-scale* --hysteresis --initial-loss-scale "
    "--min-loss-scale --rotary-percent --calculate-per-token-loss --one-logger* --no-one-logger "
    "--check-* --no-check-* --rerun-* --async-* --use-dist-ckpt* --dist-ckpt-* "
    "--use-cpu-initialization --local-rank --no-create-attention-mask-* --no-mmap-* "
    "--apply-layernorm-1p --attention-softmax-in-fp32 --no-position-embedding --no-rope-fusion "
    "--sft* --DDP-impl --finetune --enable-one-logger --ddp-average-* --make-vocab-size-divisible-by "
    "--num-dataset-* --retro-* --init-model-with-meta-device --no-initialization "
    "--grad-reduce-in-fp32 --disable-msc --te-* --accumulate-allreduce-grads-in-fp32 "
    "--use-pytorch-profiler --iteration* --skip-train --legacy-* --no-query-key-layer-scaling "
    "--high-priority-* --fp8-param-gather --keep-fp8-* --use-nccl-ub --fsdp-double-buffer "
    "--fsdp-manual-registration --num-layers-at-* --fake-process-group --use-torch-optimizer-* "
    "--object-storage-* --rope-type --rotary-interleaved --no-pin-* --logging-level";

}  // namespace

bool MegatronOptions::flag(const std::string& name) {
  asked_.insert(name);
  return command_.has(name);
}

std::optional<std::string> MegatronOptions::text(const std::string& name) {
  asked_.insert(name);
  const auto at = command_.options.find(name);
  if (at == command_.options.end()) return std::nullopt;
  if (at->second.empty()) wrong(name, "nothing", "a value");
  const std::string& value = at->second.front();
  if (has_unknown(value)) {
    unknown_.push_back(name + " " + shown_unknown(value));
    return std::nullopt;
  }
  return value;
}

std::optional<int> MegatronOptions::number(const std::string& name, int least) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const auto n = parse_count(*value, std::numeric_limits<int>::max());
  if (!n || *n < least) wrong(name, *value, fmt::format("a whole number from {}", least));
  return static_cast<int>(*n);
}

std::optional<double> MegatronOptions::real(const std::string& name) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const auto x = parse_decimal(*value);
  if (!x) wrong(name, *value, "a number");
  return x;
}

int MegatronOptions::required(const std::string& name) {
  const auto n = number(name);
  if (!n && unknown_.empty()) wrong("", "no " + name, name + " N");
  if (!n)
    wrong("", fmt::format("no value for {}", unknown_.back()), "values in the script",
          "variables that it does not set are taken from the environment: NAME=VALUE sextant ...");
  return *n;
}

const std::vector<std::string>& MegatronOptions::values(const std::string& name) {
  asked_.insert(name);
  return command_.options.at(name);
}

void MegatronOptions::wrong(const std::string& key, const std::string& value, const std::string& expected,
                            const std::string& hint) const {
  throw ConfigError(Problem{file_, key, value, expected, hint});
}

std::vector<std::string> MegatronOptions::unread() const {
  std::vector<std::string> names = unknown_;
  for (const auto& [name, values] : command_.options) {
    const bool nothing =
        std::ranges::any_of(split(kMegatronNoEffect, ' '), [&name = name](std::string_view pattern) {
          return fnmatch(std::string(pattern).c_str(), name.c_str(), 0) == 0;
        });
    if (asked_.contains(name) || nothing) continue;
    std::string text = name;
    for (std::size_t i = 0; i < values.size() && i < 3; ++i) text += " " + shown_unknown(values[i]);
    names.push_back(text);
  }
  return names;
}

}  // namespace sextant
