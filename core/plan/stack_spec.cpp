#include "core/plan/stack_spec.hpp"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

namespace sextant {

namespace {

enum class Reasons : std::uint8_t { written, left_out };

// The stack that is asked, and what it cannot do. A search asks by the hundred thousand whether there is anything at all;
// texts are made only where somebody reads them.
class Asked {
 public:
  Asked(const StackSpec& stack, Reasons reasons)
      : can(stack.can),
        is_own(stack.memory.exact_tensors),
        stack_(stack),
        texts_(reasons == Reasons::written) {}

  template <class What, class Instead>
  void cannot(bool is_so, const What& what, const Instead& instead) {
    if (!is_so) return;
    refused_ = true;
    if (texts_) reasons_.emplace_back(made(what), made(instead));
  }
  bool done() const { return refused_ && !texts_; }
  std::optional<Rejection> answer() const {
    if (!refused_) return std::nullopt;
    Rejection r{RejectReason::unsupported_by_stack, "", 0, 0};
    if (reasons_.size() == 1)
      r.text = fmt::format("{} {}; {}", stack_.name, reasons_[0].first, reasons_[0].second);
    for (std::size_t i = 0; reasons_.size() > 1 && i < reasons_.size(); ++i)
      r.text += fmt::format("{} {} ({})", i == 0 ? stack_.name : ";", reasons_[i].first, reasons_[i].second);
    return r;
  }

  const StackCapabilities& can;
  const bool is_own;  // the runtime of this project

 private:
  static std::string made(const char* text) { return text; }
  template <class Text>
  static std::string made(const Text& text) {
    return text();
  }
  const StackSpec& stack_;
  bool texts_, refused_ = false;
  std::vector<std::pair<std::string, std::string>> reasons_;  // what it cannot do, what to do instead
};

std::string listed(const std::vector<int>& values) { return fmt::format("{}", fmt::join(values, ", ")); }

// What the groups of an interleaved schedule ask for.
void refuses_groups(Asked& s, const ParallelPlan& p, const TrainingSpec& t) {
  const InterleavedCount count = s.can.interleaved_microbatches;
  const int m = microbatches(p, t), rounds = m / p.pp;
  if (rounds == 0) return;  // too few for any stack
  s.cannot(
      count == InterleavedCount::multiples_of_pp && m % p.pp != 0,
      [&] { return fmt::format("interleaves only multiples of pp={} micro-batches, not {}", p.pp, m); },
      "use vp=1, or a micro-batch, dp or global batch that leaves a multiple of pp");
  s.cannot(
      count == InterleavedCount::equal_rounds && m % rounds != 0,
      [&] {
        return fmt::format(
            "interleaves {} micro-batches over pp={} in {} equal rounds, which do not divide them", m, p.pp,
            rounds);
      },
      "use vp=1, or a micro-batch, dp or global batch that leaves a multiple of pp");
}

// What the degrees of the layout ask for.
void refuses_axes(Asked& s, const ParallelPlan& p, const ModelSpec& m, const TrainingSpec& t) {
  const StackCapabilities& can = s.can;
  const bool tp = p.tp > 1 && can.tensor_parallel, pp = p.pp > 1 && can.pipeline_parallel;
  s.cannot(
      p.tp > 1 && !can.tensor_parallel,
      [&] { return fmt::format("has no tensor parallelism (tp={})", p.tp); }, "use tp=1");
  s.cannot(
      tp && p.tp > m.n_kv_heads && !can.copies_kv_heads,
      [&] {
        return fmt::format("cannot cut {} KV heads into tp={}: it holds no head on several ranks",
                           m.n_kv_heads, p.tp);
      },
      [&] { return fmt::format("use tp={} or less", m.n_kv_heads); });
  s.cannot(tp && p.sequence_parallel && !can.sequence_parallel, "has no sequence parallelism", "use nosp");
  s.cannot(
      p.cp > 1 && !can.context_parallel,
      [&] { return fmt::format("has no context parallelism (cp={})", p.cp); },
      "use cp=1 and more recomputation or tp");
  s.cannot(
      p.pp > 1 && !can.pipeline_parallel,
      [&] { return fmt::format("has no pipeline parallelism (pp={})", p.pp); },
      "use pp=1 and shard the state");
  s.cannot(
      pp && p.schedule == PipelineSchedule::interleaved && !can.interleaved,
      [&] { return fmt::format("has no interleaved schedule (vp={})", p.vp); }, "use vp=1");
  s.cannot(
      pp && p.schedule == PipelineSchedule::interleaved && can.interleaved && p.pp < can.interleaved_from_pp,
      [&] {
        return fmt::format("interleaves only pp={} or more stages, not {}", can.interleaved_from_pp, p.pp);
      },
      [&] { return fmt::format("use vp=1, or pp={} or more", can.interleaved_from_pp); });
  if (pp && p.schedule == PipelineSchedule::interleaved && can.interleaved) refuses_groups(s, p, t);
  s.cannot(
      !in_one_of(can.axis_orders, p),
      [&] {
        return fmt::format("places no ranks in the order {} (innermost first)", order_text(p.axis_order));
      },
      [&] {
        std::vector<std::string> orders;
        for (const AxisOrder& o : can.axis_orders) orders.push_back("ax-" + order_text(o));
        return fmt::format("use {}", fmt::join(orders, " or "));
      });
  s.cannot(pp && p.schedule == PipelineSchedule::gpipe && !can.gpipe, "has no GPipe schedule", "use 1F1B");
  s.cannot(pp && p.schedule == PipelineSchedule::zero_bubble && !can.zero_bubble,
           "has no zero-bubble schedule of one chunk a rank",
           can.interleaved ? "use the interleaved schedule" : "use 1F1B");
}

// What shards state whatever is asked for.
void refuses_unsharded(Asked& s, const ParallelPlan& p, const TrainingSpec& t) {
  const StackCapabilities& can = s.can;
  const auto sharded = [&](int shards) {
    std::vector<std::string> stages;
    for (const int z : can.zero_stages)
      if (z > 0 && (p.pp == 1 || z <= can.max_zero_with_pp)) stages.push_back(fmt::format("{}", z));
    return fmt::format("use ZeRO stage {}{}", fmt::join(stages, " or "),
                       shards == p.replicas() ? "" : fmt::format(" with shard_degree={}", shards));
  };
  const bool cp = p.cp > 1 && can.context_parallel && can.context_parallel_shards;
  s.cannot(
      cp && p.zero_stage == 0,
      [&] {
        return fmt::format("shards state over its cp={} ranks always, and has no ZeRO stage 0 beside them",
                           p.cp);
      },
      [&] { return sharded(p.cp); });
  s.cannot(
      cp && p.zero_stage > 0 && p.shards() % p.cp != 0,
      [&] {
        return fmt::format("shards state over whole groups of cp={} ranks, not over {}", p.cp, p.shards());
      },
      [&] { return fmt::format("use shard_degree={} or a multiple of it", p.cp); });
  s.cannot(
      !cp && p.zero_stage == 0 && always_shards(can, p, t.parameter),
      [&] {
        return fmt::format(
            "shards master copy and moments over the {} replicas always in bf16{}, and has no ZeRO stage 0",
            p.replicas(), can.bf16_shards_from_pp > 1 ? " beside pipeline stages" : "");
      },
      [&] { return sharded(p.replicas()); });
}

void refuses_state(Asked& s, const ParallelPlan& p, const ModelSpec& m, const TrainingSpec& t) {
  const StackCapabilities& can = s.can;
  const bool offered = std::ranges::find(can.zero_stages, p.zero_stage) != can.zero_stages.end(),
             pp = p.pp > 1 && can.pipeline_parallel;
  s.cannot(
      !offered, [&] { return fmt::format("has no ZeRO stage {}", p.zero_stage); },
      [&] { return fmt::format("it offers {}", listed(can.zero_stages)); });
  s.cannot(
      offered && pp && p.zero_stage > can.max_zero_with_pp,
      [&] { return fmt::format("does not combine ZeRO stage {} with pipeline parallelism", p.zero_stage); },
      [&] { return fmt::format("use pp=1 or at most ZeRO stage {}", can.max_zero_with_pp); });
  s.cannot(
      p.zero_stage < can.fp32_sums_from_zero && size_bytes(t.parameter) < size_bytes(t.gradient),
      [&] {
        return fmt::format("sums gradients of {} parameters in {} only from ZeRO stage {}", name(t.parameter),
                           name(t.gradient), can.fp32_sums_from_zero);
      },
      [&] {
        return fmt::format("use ZeRO stage {} or training.gradient={}", can.fp32_sums_from_zero,
                           name(t.parameter));
      });
  const int shards = p.shards();
  s.cannot(
      p.zero_stage > 0 && shards > 1 && shards < p.replicas() && !can.shard_degree,
      [&] { return fmt::format("has no hybrid sharding (shard_degree={})", shards); },
      [&] { return fmt::format("use shard_degree=0, all {} replicas", p.replicas()); });
  s.cannot(
      p.zero_stage > 0 && shards > 1 && shards < p.replicas() && can.shard_degree &&
          p.zero_stage < can.shard_degree_from_zero,
      [&] {
        return fmt::format("has hybrid sharding (shard_degree={}) only from ZeRO stage {}", shards,
                           can.shard_degree_from_zero);
      },
      [&] { return fmt::format("use shard_degree=0, all {} replicas", p.replicas()); });
  s.cannot(
      can.replicas_divide_hidden && p.replicas() > 1 && m.hidden % p.replicas() != 0,
      [&] {
        return fmt::format(
            "splits every parameter over the {} replicas, which do not divide the norm's {} elements",
            p.replicas(), m.hidden);
      },
      "use a data-parallel degree that divides the hidden size");
  s.cannot(!p.replica_microbatches.empty() && !can.uneven_microbatches,
           "gives every replica equally many micro-batches",
           "leave out ga: micro_batch * dp then divides the batch");
  s.cannot(!p.shard_weights.empty() && !can.uneven_shards, "shards the state equally", "leave out sw");
  s.cannot(
      pp && !can_cut(can.uneven_stages, p, m), [&] { return cut_refusal(can.uneven_stages, p, m).reason; },
      [&] { return cut_refusal(can.uneven_stages, p, m).instead; });
}

void refuses_state_offload(Asked& s, const ParallelPlan& p, const TrainingSpec& t) {
  const StackCapabilities& can = s.can;
  const bool optimizer = p.optimizer_offload > 0, all = p.optimizer_offload == 1;
  // One replica shards nothing, whatever the framework is told of ZeRO.
  const auto only_from = [&](bool is_so, const char* what, int from, const char* instead) {
    const bool offered = std::ranges::any_of(can.zero_stages, [&](int z) { return z >= from; });
    const bool below = !offered || (p.replicas() > 1 && p.zero_stage < from);
    s.cannot(
        is_so && below,
        [&] {
          return offered ? fmt::format("keeps {} on the host only from ZeRO stage {}", what, from)
                         : fmt::format("cannot keep {} on the host", what);
        },
        [&] { return offered ? fmt::format("use ZeRO stage {}", from) : std::string(instead); });
    return is_so && below;
  };
  s.cannot(optimizer && !can.optimizer_offload, "cannot keep optimizer state on the host", [&] {
    const int most = can.zero_stages.empty() ? 0 : std::ranges::max(can.zero_stages);
    return p.zero_stage < most ? fmt::format("use oo0 with ZeRO stage {} or more GPUs", most)
                               : std::string("use oo0 with more GPUs, or a stack that can");
  });
  s.cannot(p.parameter_offload && !can.parameter_offload, "cannot keep parameters on the host", [&] {
    const bool more = p.zero_stage < 3 && std::ranges::count(can.zero_stages, 3) > 0;
    return more ? "use ZeRO stage 3 or more pipeline stages" : "use more TP or pipeline stages";
  });
  const bool optimizer_may = optimizer && can.optimizer_offload,
             parameters_may = p.parameter_offload && can.parameter_offload;
  s.cannot((optimizer_may || parameters_may) && p.pp > 1 && !can.offload_with_pp,
           "keeps no state on the host beside pipeline stages", "use pp=1");
  s.cannot((optimizer_may || parameters_may) && p.replicas() == 1 && !can.offload_of_one_replica,
           "keeps no state on the host of one replica, which it does not shard", "use dp or cp of 2 or more");
  const int m = microbatches(p, t);
  s.cannot((optimizer_may || parameters_may) && m > 1 && !can.offload_with_accumulation,
           [&] { return fmt::format("does not add up the gradients of {} micro-batches on the host", m); },
           "use a micro-batch, dp or global batch that leaves one micro-batch a step");
  if (!only_from(optimizer_may, "optimizer state", can.optimizer_offload_from_zero, "use oo0"))
    only_from(optimizer_may && !all, "a part of the optimizer state", can.partial_offload_from_zero,
              "use oo100 or oo0");
  s.cannot(
      optimizer_may && p.replicas() > 1 && p.zero_stage > can.optimizer_offload_to_zero,
      [&] {
        return fmt::format("keeps optimizer state on the host only up to ZeRO stage {}",
                           can.optimizer_offload_to_zero);
      },
      "use oo0, or a lower ZeRO stage");
  only_from(parameters_may, "parameters", can.parameter_offload_from_zero, "use more TP or pipeline stages");
  s.cannot(parameters_may && !all && can.parameter_offload_needs_optimizer,
           "keeps parameters on the host only with all of the optimizer state", "use oo100 with po");
  s.cannot(optimizer_may && !p.parameter_offload && can.optimizer_offload_needs_parameters,
           "keeps optimizer state on the host only with the parameters", "use po with oo100");
}

void refuses_memory_saving(Asked& s, const ParallelPlan& p, const ModelSpec& m, const TrainingSpec& t) {
  const StackCapabilities& can = s.can;
  const bool full = p.recompute.kind == RecomputeKind::full;
  s.cannot(p.recompute.kind == RecomputeKind::selective && !can.recompute_selective,
           "has no selective recomputation of the attention core",
           can.recompute_full ? "use full or none" : "use none");
  s.cannot(full && !can.recompute_full, "has no recomputation of whole layers", "use none");
  s.cannot(
      full && can.recompute_full && p.recompute.layers >= 0 && !can.recompute_layers,
      [&] { return fmt::format("cannot recompute only {} layers of a stage", p.recompute.layers); },
      "use full");
  refuses_state_offload(s, p, t);
  s.cannot(p.activation_offload > 0 && !can.activation_offload, "cannot keep activations on the host",
           "use recomputation");
  s.cannot(
      p.activation_offload > 0 && can.activation_offload && can.activation_offload_needs_recompute && !full,
      "offloads activations only together with full recomputation", "use full");
  const bool activations = p.activation_offload > 0 && can.activation_offload;
  s.cannot(activations && p.pp > 1 && !can.activation_offload_with_pp,
           "keeps no activations on the host beside pipeline stages", "use ao0 or pp=1");
  s.cannot(
      activations && p.activation_offload >= m.n_layers && !can.activation_offload_of_all_layers,
      [&] { return fmt::format("keeps activations of fewer than all {} layers on the host", m.n_layers); },
      [&] { return fmt::format("use ao{} or less", m.n_layers - 1); });
  s.cannot(activations && p.recompute.kind != RecomputeKind::none && !can.activation_offload_with_recompute,
           "keeps no activations on the host beside recomputation", "use ao0 or no recomputation");
}

void refuses_overlap(Asked& s, const ParallelPlan& p) {
  const StackCapabilities& can = s.can;
  const bool reduces = p.replicas() > 1, gathers = reduces && p.zero_stage > 0;
  s.cannot(reduces && p.overlap_grad_reduce && !can.overlap_grad_reduce,
           "does not overlap the gradient reduction with the backward pass", "use nogr");
  s.cannot(gathers && p.overlap_param_gather && !can.overlap_param_gather,
           "does not overlap the parameter gather with the forward pass", "use nopg");
  s.cannot(p.tp > 1 && can.tensor_parallel && p.overlap_tp && !can.overlap_tp,
           "does not overlap tensor-parallel collectives", "leave tpo out");
  s.cannot(p.tp > 1 && p.overlap_tp && can.overlap_tp && !p.sequence_parallel &&
               can.overlap_tp_needs_sequence_parallel,
           "overlaps tensor-parallel collectives only with sequence parallelism", "leave nosp or tpo out");
  s.cannot(
      p.tp > 1 && p.overlap_tp && can.overlap_tp && p.zero_stage > can.overlap_tp_to_zero,
      [&] {
        return fmt::format("overlaps tensor-parallel collectives only up to ZeRO stage {} on these devices",
                           can.overlap_tp_to_zero);
      },
      "leave tpo out");
  s.cannot(p.bucket_elements > 0 && !can.bucket_size, "fixes its gradient buckets",
           "leave the bucket size out");
  s.cannot(p.last_bucket_split > 1 && !can.last_bucket_split, "cannot split the last bucket", "leave lb out");
}

// The runtime's own GEMMs in fp8: cuBLASLt takes extents that are multiples of 16, of one rank.
void refuses_fp8(Asked& s, const ParallelPlan& p, const ModelSpec& m, const TrainingSpec& t) {
  constexpr std::int64_t kMultiple = 16;
  const std::int64_t d = m.head_dim, tp = std::max(1, p.tp),
                     tokens = std::int64_t{p.micro_batch} * t.seq_len / std::max(1, p.cp);
  for (const auto& [what, extent] : {std::pair{"hidden width", std::int64_t{m.hidden}},
                                     {"query width of a rank", m.n_heads / tp * d},
                                     {"key width of a rank", m.n_kv_heads / tp * d},
                                     {"inner width of a rank", m.ffn_hidden / tp},
                                     {"number of tokens of a micro-batch", tokens}})
    s.cannot(
        extent % kMultiple != 0,
        [&, what = what, extent = extent] {
          return fmt::format("multiplies in fp8 where extents are multiples of {}, and the {} is {}",
                             kMultiple, what, extent);
        },
        "use bf16");
}

std::optional<Rejection> refuses(Asked s, const ParallelPlan& p, const ModelSpec& m, const TrainingSpec& t) {
  refuses_axes(s, p, m, t);
  if (!s.done()) refuses_state(s, p, m, t);
  if (!s.done()) refuses_unsharded(s, p, t);
  if (!s.done()) refuses_memory_saving(s, p, m, t);
  if (!s.done()) refuses_overlap(s, p);
  s.cannot(t.compute == Dtype::fp8 && !s.can.fp8, "has no fp8 GEMMs", "use bf16");
  if (t.compute == Dtype::fp8 && s.is_own) refuses_fp8(s, p, m, t);
  return s.answer();
}

}  // namespace

bool always_shards(const StackCapabilities& can, const ParallelPlan& p, Dtype parameter) {
  if (p.replicas() == 1) return false;
  return (p.cp > 1 && can.context_parallel && can.context_parallel_shards) ||
         (can.bf16_shards_from_pp > 0 && p.pp >= can.bf16_shards_from_pp && parameter == Dtype::bf16);
}

int lowest_zero_stage(const StackCapabilities& can, const ParallelPlan& p, Dtype parameter) {
  const bool sharded = always_shards(can, p, parameter);
  int lowest = -1;
  for (const int z : can.zero_stages)
    if ((z > 0 || !sharded) && (lowest < 0 || z < lowest)) lowest = z;
  return std::max(0, lowest);
}

bool may_overlap_tp(const StackCapabilities& can, const ParallelPlan& p) {
  return can.overlap_tp && p.zero_stage <= can.overlap_tp_to_zero &&
         (p.sequence_parallel || !can.overlap_tp_needs_sequence_parallel);
}

std::optional<Rejection> refuses(const StackSpec& s, const ParallelPlan& p, const ModelSpec& m,
                                 const TrainingSpec& t) {
  return refuses(Asked(s, Reasons::written), p, m, t);
}

std::optional<RejectReason> refusal(const StackSpec& s, const ParallelPlan& p, const ModelSpec& m,
                                    const TrainingSpec& t) {
  if (const auto r = refuses(Asked(s, Reasons::left_out), p, m, t)) return r->reason;
  return std::nullopt;
}

}  // namespace sextant
