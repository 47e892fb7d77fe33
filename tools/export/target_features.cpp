#include "tools/export/target_features.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/plan/pipeline_order.hpp"

namespace sextant {

PlanChange set_field(const std::string& what, std::function<void(ParallelPlan&)> apply) {
  return {what, [apply = std::move(apply)](PlanFile& file) { apply(file.plan); }};
}

namespace {

class Findings {
 public:
  explicit Findings(const PlanFile& asked) : file(asked), plan(asked.plan) {}

  template <class Value>
  void add(bool is_so, const std::string& field, const Value& value, const std::string& reason,
           std::vector<PlanChange> changes = {}) {
    if (is_so) found.push_back({field, fmt::format("{}", value), reason, std::move(changes)});
  }

  const PlanFile& file;
  const ParallelPlan& plan;
  std::vector<Inexpressible> found;
};

void one_chunk(ParallelPlan& p) {
  p.vp = 1;
  p.schedule = PipelineSchedule::one_f_one_b;
  p.chunks.clear();
}

// Replicas that are alike: as many as there are or fewer, of micro-batches as large or smaller, so that they divide the batch.
std::vector<PlanChange> equal_replicas(const ParallelPlan& p, int global_batch) {
  std::vector<PlanChange> out;
  int most = 0;  // of the replicas so far: smaller micro-batches that leave as many idle are no better
  for (int micro = p.micro_batch; micro >= 1; --micro) {
    if (p.micro_batch % micro != 0 || global_batch % micro != 0) continue;
    int dp = p.dp;
    while (global_batch / micro % dp != 0) --dp;
    if (dp <= most) continue;
    most = dp;
    std::string what = "equally many micro-batches";
    if (dp != p.dp) what += fmt::format(", dp {}", dp);
    if (micro != p.micro_batch) what += fmt::format(", micro_batch {}", micro);
    out.push_back(set_field(what, [dp, micro](ParallelPlan& q) {
      q.replica_microbatches.clear();
      q.dp = dp;
      q.micro_batch = micro;
      if (q.shard_degree > 0 && q.replicas() % q.shard_degree != 0) q.shard_degree = 0;
    }));
  }
  return out;
}

void check_degrees(Findings& f, const TargetFeatures& t) {
  const ParallelPlan& p = f.plan;
  const auto into_dp = [&](const char* field, int degree, auto member) {
    return std::vector<PlanChange>{
        set_field(fmt::format("{} 1, dp {}", field, p.dp * degree), [member, degree](ParallelPlan& q) {
          q.*member = 1;
          q.dp *= degree;
          if (q.tp == 1) q.sequence_parallel = false;
          if (q.pp == 1) one_chunk(q);
        })};
  };
  f.add(p.tp > 1 && !t.can.tensor_parallel, "tp", p.tp, "there is no tensor parallelism",
        into_dp("tp", p.tp, &ParallelPlan::tp));
  f.add(p.tp > f.file.model.n_kv_heads && p.tp > 1 && t.can.tensor_parallel && !t.can.copies_kv_heads, "tp",
        p.tp, fmt::format("key/value heads are not copied: the model has {}", f.file.model.n_kv_heads),
        {set_field(fmt::format("tp {}", f.file.model.n_kv_heads),
                   [kv = f.file.model.n_kv_heads](ParallelPlan& q) {
                     if (q.tp % kv == 0) q.dp *= q.tp / kv;
                     q.tp = kv;
                   })});
  f.add(p.cp > 1 && !t.can.context_parallel, "cp", p.cp, "there is no context parallelism",
        into_dp("cp", p.cp, &ParallelPlan::cp));
  f.add(p.pp > 1 && !t.can.pipeline_parallel, "pp", p.pp, "there are no pipeline stages",
        into_dp("pp", p.pp, &ParallelPlan::pp));
  f.add(p.tp > 1 && p.sequence_parallel && !t.can.sequence_parallel, "sequence_parallel", true,
        "there is no sequence parallelism",
        {set_field("sequence_parallel false", [](ParallelPlan& q) { q.sequence_parallel = false; })});
  f.add(p.tp > 1 && !p.sequence_parallel && !t.without_sequence_parallel, "sequence_parallel", false,
        "tensor parallelism always splits activations over tokens",
        {set_field("sequence_parallel true", [](ParallelPlan& q) { q.sequence_parallel = true; })});
  f.add(!p.replica_microbatches.empty() && !t.can.uneven_microbatches, "replica_microbatches", "unequal",
        "every replica takes equally many micro-batches", equal_replicas(p, f.file.training.global_batch));
  f.add(!p.shard_weights.empty() && !t.can.uneven_shards, "shard_weights", "unequal",
        "every rank of a shard group owns equally much",
        {set_field("equal shards", [](ParallelPlan& q) { q.shard_weights.clear(); })});
  std::vector<PlanChange> orders;
  for (const AxisOrder& o : t.axis_orders)
    orders.push_back(set_field("axis_order " + order_text(o), [o](ParallelPlan& q) { q.axis_order = o; }));
  f.add(!in_one_of(t.axis_orders, p), "axis_order", order_text(p.axis_order), "its ranks have another order",
        std::move(orders));
}

void check_schedule(Findings& f, const TargetFeatures& t) {
  const ParallelPlan& p = f.plan;
  if (p.pp == 1 || !t.can.pipeline_parallel) return;
  const ModelSpec& m = f.file.model;
  const PlanChange plain = set_field("schedule 1f1b", one_chunk);
  const bool interleaved = p.schedule == PipelineSchedule::interleaved;
  f.add(interleaved && !t.can.interleaved, "vp", p.vp, "there is no interleaved schedule", {plain});
  f.add(interleaved && t.can.interleaved && p.pp < t.can.interleaved_from_pp, "vp", p.vp,
        fmt::format("the interleaved schedule needs {} stages or more", t.can.interleaved_from_pp), {plain});
  const int micro = microbatches(p, f.file.training), rounds = micro / p.pp;
  const InterleavedCount count = t.can.interleaved_microbatches;
  f.add(interleaved && t.can.interleaved && count == InterleavedCount::multiples_of_pp && micro % p.pp != 0,
        "vp", p.vp,
        fmt::format("the interleaved schedule takes multiples of {} micro-batches, not {}", p.pp, micro),
        {plain});
  f.add(interleaved && t.can.interleaved && count == InterleavedCount::equal_rounds && rounds > 0 &&
            micro % rounds != 0,
        "vp", p.vp,
        fmt::format("the interleaved schedule takes {} micro-batches in equal rounds, not {}", rounds, micro),
        {plain});
  f.add(p.schedule == PipelineSchedule::gpipe && !t.can.gpipe, "schedule", name(p.schedule),
        "there is no GPipe schedule", {plain});
  f.add(p.schedule == PipelineSchedule::zero_bubble && !t.can.zero_bubble, "schedule", name(p.schedule),
        "there is no zero-bubble schedule of one model chunk per rank", {plain});
  const UnevenStages able = t.can.uneven_stages;
  if (interleaved && !t.can.interleaved) return;
  if (can_cut(able, p, layer_ranges(p, m.n_layers), m)) return;
  const CutRefusal why = cut_refusal(able, p, m);
  std::vector<PlanChange> cuts;
  for (const std::vector<int>& cut : why.cuts)
    cuts.push_back(set_field(fmt::format("{} layers", fmt::join(cut, ", ")),
                             [cut, layers = m.n_layers](ParallelPlan& q) {
                               q.chunks = chunks_of(cut);
                               if (equal_chunks(q, layers)) q.chunks.clear();
                             }));
  if (interleaved || m.n_layers % p.pp == 0) cuts.push_back(plain);
  const bool never = why.cuts.empty() && cuts_by_rule(able, p.vp);
  f.add(true, never ? "pp" : "chunks", never ? fmt::format("{}", p.pp) : "unequal",
        fmt::format("it {}", why.reason), std::move(cuts));
}

void check_state(Findings& f, const TargetFeatures& t) {
  const ParallelPlan& p = f.plan;
  std::vector<PlanChange> stages;
  for (const int z : t.can.zero_stages)
    if (p.pp == 1 || z <= t.can.max_zero_with_pp)
      stages.push_back(set_field(fmt::format("zero_stage {}", z), [z](ParallelPlan& q) {
        q.zero_stage = z;
        if (z == 0) q.shard_degree = 0;
      }));
  const bool offered = std::ranges::count(t.can.zero_stages, p.zero_stage) > 0;
  f.add(!offered, "zero_stage", p.zero_stage,
        fmt::format("it shards at ZeRO stages {}", fmt::join(t.can.zero_stages, ", ")), stages);
  f.add(offered && p.pp > 1 && t.can.pipeline_parallel && p.zero_stage > t.can.max_zero_with_pp, "zero_stage",
        p.zero_stage,
        fmt::format("beside pipeline stages it shards up to ZeRO stage {}", t.can.max_zero_with_pp), stages);
  const bool hybrid = p.zero_stage > 0 && p.shards() > 1 && p.shards() < p.replicas();
  const PlanChange whole = set_field("shard_degree 0", [](ParallelPlan& q) { q.shard_degree = 0; });
  f.add(hybrid && !t.can.shard_degree, "shard_degree", p.shard_degree,
        "state is sharded over all replicas or none", {whole});
  f.add(hybrid && t.can.shard_degree && p.zero_stage < t.can.shard_degree_from_zero, "shard_degree",
        p.shard_degree, fmt::format("hybrid sharding begins at ZeRO stage {}", t.can.shard_degree_from_zero),
        {whole});
}

void check_memory_saving(Findings& f, const TargetFeatures& t) {
  const ParallelPlan& p = f.plan;
  const auto recompute = [](const char* what, RecomputeKind kind) {
    return set_field(what, [kind](ParallelPlan& q) { q.recompute = {.kind = kind, .layers = -1}; });
  };
  const PlanChange none = recompute("recompute none", RecomputeKind::none),
                   full = recompute("recompute full", RecomputeKind::full);
  const bool selective = p.recompute.kind == RecomputeKind::selective,
             whole = p.recompute.kind == RecomputeKind::full;
  f.add(selective && !t.can.recompute_selective, "recompute", "selective",
        "there is no selective recomputation", {none, full});
  f.add(whole && !t.can.recompute_full, "recompute", "full", "there is no recomputation of whole layers",
        {none});
  f.add(whole && t.can.recompute_full && p.recompute.layers >= 0 && !t.can.recompute_layers,
        "recompute.layers", p.recompute.layers, "either all layers are recomputed or none", {full, none});
  const PlanChange no_optimizer = set_field("optimizer_offload 0", [](ParallelPlan& q) {
    q.optimizer_offload = 0;
    q.parameter_offload = false;
  });
  f.add(p.optimizer_offload > 0 && !t.can.optimizer_offload, "optimizer_offload", p.optimizer_offload,
        "optimizer state stays on the device", {no_optimizer});
  f.add(p.parameter_offload && !t.can.parameter_offload, "parameter_offload", true,
        "parameters stay on the device",
        {set_field("parameter_offload false", [](ParallelPlan& q) { q.parameter_offload = false; })});
  const PlanChange no_activations =
      set_field("activation_offload 0", [](ParallelPlan& q) { q.activation_offload = 0; });
  f.add(p.activation_offload > 0 && !t.can.activation_offload, "activation_offload", p.activation_offload,
        "activations stay on the device", {no_activations});
  f.add(p.offload_horizon != ParallelPlan().offload_horizon &&
            (p.activation_offload > 0 || p.parameter_offload) && !t.offload_horizon,
        "offload_horizon", p.offload_horizon, "how many layers ahead are fetched back is no option",
        {set_field("offload_horizon 1", [](ParallelPlan& q) { q.offload_horizon = 1; })});
}

void check_overlap(Findings& f, const TargetFeatures& t) {
  const ParallelPlan& p = f.plan;
  const bool reduces = p.replicas() > 1, gathers = reduces && p.zero_stage > 0;
  const auto flag = [](const char* what, bool ParallelPlan::*member, bool value) {
    return std::vector<PlanChange>{set_field(what, [member, value](ParallelPlan& q) { q.*member = value; })};
  };
  f.add(p.bucket_elements > 0 && !t.can.bucket_size, "bucket_elements", p.bucket_elements,
        "the size of gradient buckets is no option",
        {set_field("bucket_elements 0", [](ParallelPlan& q) { q.bucket_elements = 0; })});
  f.add(p.last_bucket_split > 1 && !t.can.last_bucket_split, "last_bucket_split", p.last_bucket_split,
        "the last bucket is not cut",
        {set_field("last_bucket_split 1", [](ParallelPlan& q) { q.last_bucket_split = 1; })});
  f.add(reduces && p.overlap_grad_reduce && !t.can.overlap_grad_reduce, "overlap_grad_reduce", true,
        "gradients are reduced after the backward pass",
        flag("overlap_grad_reduce false", &ParallelPlan::overlap_grad_reduce, false));
  f.add(reduces && !p.overlap_grad_reduce && !t.without_grad_overlap, "overlap_grad_reduce", false,
        "gradients are always reduced during the backward pass",
        flag("overlap_grad_reduce true", &ParallelPlan::overlap_grad_reduce, true));
  f.add(gathers && p.overlap_param_gather && !t.can.overlap_param_gather, "overlap_param_gather", true,
        "parameters are gathered before the forward pass",
        flag("overlap_param_gather false", &ParallelPlan::overlap_param_gather, false));
  f.add(gathers && !p.overlap_param_gather && !t.without_param_overlap, "overlap_param_gather", false,
        "parameters are always gathered during the passes",
        flag("overlap_param_gather true", &ParallelPlan::overlap_param_gather, true));
  f.add(p.tp > 1 && p.overlap_tp && !t.can.overlap_tp, "overlap_tp", true,
        "collectives of tp are not tiled into GEMMs",
        flag("overlap_tp false", &ParallelPlan::overlap_tp, false));
  f.add(p.tp > 1 && p.overlap_tp && t.can.overlap_tp && p.zero_stage > t.can.overlap_tp_to_zero, "overlap_tp",
        true,
        fmt::format("collectives of tp are tiled into GEMMs up to ZeRO stage {} on these devices",
                    t.can.overlap_tp_to_zero),
        flag("overlap_tp false", &ParallelPlan::overlap_tp, false));
}

void check_formats(Findings& f, const TargetFeatures& t) {
  const TrainingSpec& own = f.file.training;
  const auto same = [&](const TargetFormats& o) {
    return o.compute == own.compute && o.parameter == own.parameter && o.gradient == own.gradient &&
           o.reduction == own.reduction && o.optimizer_state == own.optimizer_state;
  };
  if (t.formats.empty() || std::ranges::any_of(t.formats, same)) return;
  // Fields whose value occurs in no line with the formats before it.
  const auto text = [](Dtype c, Dtype p, Dtype g, Dtype r, Dtype o) {
    return fmt::format("compute {}, parameters {}, gradients {} reduced in {}, optimizer state {}", name(c),
                       name(p), name(g), name(r), name(o));
  };
  std::vector<PlanChange> changes;
  const auto differences = [&](const TargetFormats& o) {
    return int(o.compute != own.compute) * 4 + int(o.parameter != own.parameter) * 2 +
           int(o.gradient != own.gradient) + int(o.reduction != own.reduction) +
           int(o.optimizer_state != own.optimizer_state);
  };
  const auto nearest = std::ranges::min_element(t.formats, {}, differences);
  changes.push_back({text(nearest->compute, nearest->parameter, nearest->gradient, nearest->reduction,
                          nearest->optimizer_state),
                     [o = *nearest](PlanFile& file) {
                       file.training.compute = o.compute;
                       file.training.parameter = o.parameter;
                       file.training.gradient = o.gradient;
                       file.training.reduction = o.reduction;
                       file.training.optimizer_state = o.optimizer_state;
                     }});
  f.add(true, "training", text(own.compute, own.parameter, own.gradient, own.reduction, own.optimizer_state),
        "this combination of number formats is no option", std::move(changes));
}

void check_model(Findings& f, const TargetFeatures& t) {
  const ModelSpec& m = f.file.model;
  f.add(m.position == PositionKind::learned && !t.learned_positions, "model.position", "learned",
        "it has rotary positions only");
  f.add(m.position == PositionKind::alibi && !t.alibi, "model.position", "alibi", "it has no ALiBi");
  f.add(m.norm == NormKind::layer && !t.layer_norm, "model.norm", "layer", "its norms are RMS norms");
  f.add(!m.gated_mlp && !t.plain_mlp, "model.gated_mlp", false, "its MLP is gated (SwiGLU)");
  // Of these no target writes an option yet.
  f.add(m.qk_norm != QkNorm::none, "model.qk_norm", kQkNormNames[static_cast<std::size_t>(m.qk_norm)],
        "norms of queries and keys are not exported");
  f.add(m.norm_placement != NormPlacement::before, "model.norm_placement", "after",
        "norms behind the half-layers are not exported");
  f.add(m.window > 0, "model.window", m.window, "sliding-window attention is not exported");
  f.add(m.normalized_head, "model.normalized_head", true, "a normalized LM head is not exported");
  f.add(m.embedding_norm && !t.embedding_norm, "model.embedding_norm", true,
        "it has no norm behind the embedding");
  f.add(m.linear_bias && !t.every_bias, "model.linear_bias", true, "its linear layers have no biases");
  f.add(m.qkv_bias && !m.linear_bias && !t.qkv_bias, "model.qkv_bias", true, "its q, k and v have no biases");
  f.add(m.output_bias && !m.linear_bias && !t.output_bias, "model.output_bias", true,
        "the output projection alone cannot have a bias");
  f.add(m.mlp_bias && !m.linear_bias && !t.mlp_bias, "model.mlp_bias", true,
        "the MLP alone cannot have biases");
  f.add(m.tied_embeddings && !t.tied_embeddings, "model.tied_embeddings", true,
        "its embeddings are not tied");
  f.add(m.head_dim * m.n_heads != m.hidden && !t.own_head_dim, "model.head_dim", m.head_dim,
        fmt::format("heads are hidden / n_heads wide: {}", m.n_heads > 0 ? m.hidden / m.n_heads : 0));
  f.add(m.rope_scaling && (std::ranges::count(t.rope_scaling, m.rope_scaling->type) == 0 ||
                           m.rope_scaling->not_run.has_value()),
        "model.rope_scaling", m.rope_scaling ? m.rope_scaling->not_run.value_or(m.rope_scaling->type) : "",
        "it does not scale rotary frequencies in this way");
}

}  // namespace

std::vector<Inexpressible> beyond_features(const TargetFeatures& t, const PlanFile& file) {
  Findings f(file);
  if (!t.whole_model) check_model(f, t);
  check_formats(f, t);
  check_degrees(f, t);
  check_schedule(f, t);
  check_state(f, t);
  check_memory_saving(f, t);
  check_overlap(f, t);
  return std::move(f.found);
}

}  // namespace sextant
