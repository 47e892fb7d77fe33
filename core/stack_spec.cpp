#include "core/stack_spec.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace sextant {

namespace {

// The stack that is asked, and whether anyone reads the answer: a search asks by the hundred thousand.
struct Asked {
  const StackSpec& stack;
  const StackCapabilities& can;
  bool texts;
};

std::string made(const char* text) { return text; }
template <class Text>
std::string made(const Text& text) {
  return text();
}

template <class What, class Instead>
std::optional<Rejection> cannot(const Asked& s, const What& what, const Instead& instead) {
  if (!s.texts) return Rejection{RejectReason::stack_cannot, "", 0, 0};
  return Rejection{RejectReason::stack_cannot,
                   fmt::format("{} {}; {}", s.stack.name, made(what), made(instead)), 0, 0};
}

std::string join(const std::vector<int>& values) { return fmt::format("{}", fmt::join(values, ", ")); }

// What the degrees of the layout ask for.
std::optional<Rejection> refuses_axes(const Asked& s, const ParallelPlan& p, const ModelSpec& m) {
  const StackCapabilities& can = s.can;
  if (p.tp > 1 && !can.tensor_parallel)
    return cannot(
        s, [&] { return fmt::format("has no tensor parallelism (tp={})", p.tp); }, "use tp=1");
  if (p.tp > m.n_kv_heads && !can.copies_kv_heads)
    return cannot(
        s,
        [&] {
          return fmt::format("does not copy key/value heads to several ranks (tp={}, {} heads)", p.tp,
                             m.n_kv_heads);
        },
        [&] { return fmt::format("use tp={} or less", m.n_kv_heads); });
  if (p.tp > 1 && p.sequence_parallel && !can.sequence_parallel)
    return cannot(s, "has no sequence parallelism", "use nosp");
  if (p.cp > 1 && !can.context_parallel)
    return cannot(
        s, [&] { return fmt::format("has no context parallelism (cp={})", p.cp); },
        "use cp=1 and more recomputation or tp");
  if (p.pp > 1 && !can.pipeline_parallel)
    return cannot(
        s, [&] { return fmt::format("has no pipeline parallelism (pp={})", p.pp); },
        "use pp=1 and shard the state");
  if (p.pp > 1 && p.schedule == PipelineSchedule::interleaved && !can.interleaved)
    return cannot(
        s, [&] { return fmt::format("has no interleaved schedule (vp={})", p.vp); }, "use vp=1");
  if (p.pp > 1 && p.schedule == PipelineSchedule::gpipe && !can.gpipe)
    return cannot(s, "has no GPipe schedule", "use 1F1B");
  if (p.pp > 1 && p.schedule == PipelineSchedule::zero_bubble && !can.zero_bubble)
    return cannot(s, "has no zero-bubble schedule",
                  can.interleaved ? "use the interleaved schedule" : "use 1F1B");
  return std::nullopt;
}

bool uneven(const ParallelPlan& p, const ModelSpec& m) {
  if (m.n_layers % (p.pp * p.vp) != 0) return true;
  return std::any_of(p.chunks.begin(), p.chunks.end(),
                     [&](const LayerRange& c) { return c.count != m.n_layers / (p.pp * p.vp); });
}

std::optional<Rejection> refuses_state(const Asked& s, const ParallelPlan& p, const ModelSpec& m) {
  const StackCapabilities& can = s.can;
  if (std::find(can.zero_stages.begin(), can.zero_stages.end(), p.zero_stage) == can.zero_stages.end())
    return cannot(
        s, [&] { return fmt::format("has no ZeRO stage {}", p.zero_stage); },
        [&] { return fmt::format("it offers {}", join(can.zero_stages)); });
  if (p.pp > 1 && p.zero_stage > can.max_zero_with_pp)
    return cannot(
        s,
        [&] { return fmt::format("does not combine ZeRO stage {} with pipeline parallelism", p.zero_stage); },
        [&] { return fmt::format("use pp=1 or at most ZeRO stage {}", can.max_zero_with_pp); });
  const int shards = p.shards();
  if (p.zero_stage > 0 && shards > 1 && shards < p.replicas() && !can.shard_degree)
    return cannot(
        s, [&] { return fmt::format("has no hybrid sharding (shard_degree={})", shards); },
        [&] { return fmt::format("use shard_degree=0, all {} replicas", p.replicas()); });
  if (can.replicas_divide_hidden && p.replicas() > 1 && m.hidden % p.replicas() != 0)
    return cannot(
        s,
        [&] {
          return fmt::format(
              "splits every parameter over the {} replicas, which do not divide the norm's {} elements",
              p.replicas(), m.hidden);
        },
        "use a data-parallel degree that divides the hidden size");
  if (p.pp > 1 && !can.uneven_stages && uneven(p, m))
    return cannot(
        s,
        [&] { return fmt::format("needs equal stages: {} layers over {} chunks", m.n_layers, p.pp * p.vp); },
        "use pp*vp that divides the layers");
  return std::nullopt;
}

std::optional<Rejection> refuses_memory_saving(const Asked& s, const ParallelPlan& p) {
  const StackCapabilities& can = s.can;
  if (p.recompute.kind == RecomputeKind::selective && !can.recompute_selective)
    return cannot(s, "has no selective recomputation of the attention core",
                  can.recompute_full ? "use full or none" : "use none");
  if (p.recompute.kind == RecomputeKind::full && !can.recompute_full)
    return cannot(s, "has no recomputation of whole layers", "use none");
  if (p.recompute.kind == RecomputeKind::full && p.recompute.layers >= 0 && !can.recompute_layers)
    return cannot(
        s, [&] { return fmt::format("cannot recompute only {} layers of a stage", p.recompute.layers); },
        "use full");
  if (p.optimizer_offload > 0 && !can.optimizer_offload)
    return cannot(s, "cannot keep optimizer state on the host", "use a higher ZeRO stage");
  if (p.parameter_offload && !can.parameter_offload)
    return cannot(s, "cannot keep parameters on the host", "use ZeRO stage 3 or more pipeline stages");
  if (p.activation_offload > 0 && !can.activation_offload)
    return cannot(s, "cannot keep activations on the host", "use recomputation");
  if (p.activation_offload > 0 && can.activation_offload_needs_recompute &&
      p.recompute.kind != RecomputeKind::full)
    return cannot(s, "offloads activations only together with full recomputation", "use full");
  return std::nullopt;
}

std::optional<Rejection> refuses_overlap(const Asked& s, const ParallelPlan& p) {
  const StackCapabilities& can = s.can;
  const bool reduces = p.replicas() > 1, gathers = reduces && p.zero_stage > 0;
  if (reduces && p.overlap_grad_reduce && !can.overlap_grad_reduce)
    return cannot(s, "does not overlap the gradient reduction with the backward pass", "use nogr");
  if (gathers && p.overlap_param_gather && !can.overlap_param_gather)
    return cannot(s, "does not overlap the parameter gather with the forward pass", "use nopg");
  if (p.tp > 1 && p.overlap_tp && !can.overlap_tp)
    return cannot(s, "does not overlap tensor-parallel collectives", "leave tpo out");
  if (p.bucket_elements > 0 && !can.bucket_size)
    return cannot(s, "fixes its gradient buckets", "leave the bucket size out");
  if (p.last_bucket_split > 1 && !can.last_bucket_split)
    return cannot(s, "cannot split the last bucket", "leave lb out");
  return std::nullopt;
}

std::optional<Rejection> refuses(const Asked& s, const ParallelPlan& p, const ModelSpec& m,
                                 const TrainingSpec& t) {
  if (auto r = refuses_axes(s, p, m)) return r;
  if (auto r = refuses_state(s, p, m)) return r;
  if (auto r = refuses_memory_saving(s, p)) return r;
  if (auto r = refuses_overlap(s, p)) return r;
  if (t.compute == Dtype::fp8 && !s.can.fp8) return cannot(s, "has no fp8 matrix products", "use bf16");
  return std::nullopt;
}

}  // namespace

std::optional<Rejection> refuses(const StackSpec& s, const ParallelPlan& p, const ModelSpec& m,
                                 const TrainingSpec& t) {
  return refuses(Asked{s, s.can, true}, p, m, t);
}

std::optional<RejectReason> refusal(const StackSpec& s, const ParallelPlan& p, const ModelSpec& m,
                                    const TrainingSpec& t) {
  if (const auto r = refuses(Asked{s, s.can, false}, p, m, t)) return r->reason;
  return std::nullopt;
}

}  // namespace sextant
