// The checker on graphs as lowered (clean), and on graphs with one thing wrong (each must be caught).
#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/graph/checks/graph_check.hpp"
#include "core/graph/parameter_layout.hpp"
#include "tests/support/arbitrary.hpp"
#include "tests/support/specs.hpp"

namespace sextant {
namespace {

using namespace testing;

struct Layout {
  const char* key;
  bool tied = false;
  bool every_microbatch = false;  // ZeRO-2 reduces in each backward
  bool pipelined_update = false;
  bool p2p_overlaps = false;
  bool param_gather_overlaps_forward = true;
  bool tied_apart = false;
  bool fsdp = false;
  bool cp_ring = false;
  QkNorm qk_norm = QkNorm::none;
  bool copies = false;      // of gradients, for the update
  bool normalized = false;  // head
};
void PrintTo(const Layout& l, std::ostream* out) { *out << l.key << (l.tied ? " tied" : ""); }

StackSpec stack_of(const Layout& l) {
  StackSpec stack;
  stack.rules.reduce_every_microbatch = l.every_microbatch;
  stack.rules.pipelined_update = l.pipelined_update;
  stack.rules.p2p_overlaps_compute_1f1b = l.p2p_overlaps;
  stack.rules.param_gather_overlaps_forward = l.param_gather_overlaps_forward;
  stack.rules.tied_gradients_apart = l.tied_apart;
  stack.rules.host_sums_gradients = stack.rules.host_parameters_are_master = l.fsdp;
  stack.rules.zero2_by_units = l.fsdp;
  stack.rules.cp_ring = l.cp_ring;
  if (l.copies) {
    stack.memory.update_copies = UpdateCopies::flattened;
    stack.memory.update_extra_bytes = 100;
  }
  return stack;
}

ExecutionGraph lower_layout(const Layout& l) {
  const ParallelPlan plan = parse_plan_key(l.key);
  const int layers = std::max(2, plan.pp * plan.vp);
  const int batch = plan.dp * plan.micro_batch * std::max(2, plan.pp);
  if (l.qk_norm == QkNorm::none && !l.normalized)
    return lower_tiny(l.key, layers, batch, stack_of(l), true, l.tied);
  ModelSpec model = tiny_model(layers);
  model.qk_norm = l.qk_norm;
  model.normalized_head = l.normalized;
  if (l.qk_norm != QkNorm::none) model.norm_placement = NormPlacement::after;
  return lower(model, tiny_training(batch), flat_links(plan), plan, stack_of(l), {true});
}

// One axis each, then what meets: every schedule, sharding, offload and overlap at least once.
const Layout kLayouts[] = {
    {"mbs1"},
    {"tp2.mbs1.nosp"},
    {"tp2.mbs1"},
    {"cp2.mbs1"},
    {"tp2.pp2.dp2.z1.mbs1"},
    {"tp2.pp2.dp2.z1.mbs1.b20K", false, false, true, true},
    {"pp2.dp2.z0.mbs1.nogr"},
    {"pp2.dp2.z1.mbs1.nogr.nopg.tied", true},
    {"pp2.vp2.dp2.z1.mbs1.b20K.full", false, false, false, false, false},
    {"tp2.pp2.mbs1.zb"},
    {"pp2.dp2.z1.mbs1.gpipe", true, false, false, true},
    {"dp2.z2.mbs1.b20K", false, true},
    {"pp2.dp2.z2.mbs1", true, true},
    {"dp4.z3.sd2.mbs1"},
    {"tp2.dp2.z3.mbs1.nopg.full1", true},
    {"dp4.z1.sd2.mbs1.b20K.oo50"},
    {"dp2.z3.mbs1.po.oo50"},
    {"mbs1.po", true},
    {"dp2.z2.mbs1", false, true, false, false, true, false, true},
    {"tp2.dp4.z2.sd2.mbs1.nopg", true, true, false, false, true, false, true},
    {"pp2.dp2.z2.mbs1", false, false, false, false, true, false, true},
    {"dp2.z3.mbs1.po.oo100", true, false, false, false, true, false, true},
    {"tp2.dp4.z3.sd2.mbs1.po.oo100.nogr", false, false, false, false, true, false, true},
    {"tp2.cp2.mbs1.ao1.sel"},
    {"dp2.z1.mbs1.oo100.lb2", false, false, true},
    {"tp2.dp2.z1.mbs1.b20K", true, false, false, false, true, true},
    {.key = "cp2.mbs1", .cp_ring = true},
    {.key = "tp2.cp2.mbs1.full", .cp_ring = true},
    {.key = "tp2.cp2.pp2.mbs1.zb.nosp", .cp_ring = true},
    {.key = "cp2.dp2.z3.mbs1.ao1.sel", .cp_ring = true},
    {.key = "tp2.pp2.mbs1.zb", .qk_norm = QkNorm::head},
    {.key = "tp2.dp2.z3.mbs1.full1", .qk_norm = QkNorm::whole},
    {.key = "tp2.cp2.pp2.mbs1.zb.nosp", .qk_norm = QkNorm::whole},
    {.key = "tp2.cp2.mbs1.sel", .cp_ring = true, .qk_norm = QkNorm::whole},
    {.key = "tp2.pp2.dp2.z1.mbs1", .pipelined_update = true, .copies = true},
    {.key = "tp2.pp2.mbs1.zb", .normalized = true},
    {.key = "pp2.dp2.z3.mbs1.zb", .normalized = true},
};

Layout plain(Layout l) {
  static std::string key;
  key = l.key;
  if (const auto at = key.find(".tied"); at != std::string::npos) key.erase(at);
  l.key = key.c_str();
  return l;
}

std::string text(const std::vector<Problem>& problems) {
  std::string out;
  for (const Problem& p : problems) out += to_string(p) + "\n";
  return out;
}

bool caught(const ExecutionGraph& g, const StackRules& rules) {
  return !check_form(g).empty() || !check_hazards(g).empty() || !check_coverage(g, rules).empty() ||
         !check_progress(g, lane_orders(g)).empty();
}

class Checker : public ::testing::TestWithParam<Layout> {
 protected:
  ExecutionGraph graph = lower_layout(plain(GetParam()));
  StackRules rules = stack_of(GetParam()).rules;
};

TEST_P(Checker, AcceptsWhatIsLowered) { EXPECT_EQ(text(check(graph, rules)), ""); }

// No dependency is there without need: without any one of them two accesses are unordered. Only a sum over the world
// names every stage's part, even those that the pipeline happens to order.
TEST_P(Checker, CatchesEachMissingDependency) {
  for (OpId i = 0; i < graph.ops.size(); ++i)
    for (std::uint32_t d = 0; d < graph.ops[i].dep_count; ++d) {
      ExecutionGraph mutant = graph;
      Op& op = mutant.ops[i];
      const OpId dep = mutant.deps[op.dep_begin + d];
      if (op.role == OpRole::norm_reduce && graph.ops[dep].stage != op.stage) continue;
      // Whoever launches waits for sums on the host, and need not wait for what came before them.
      if (sums_gradients_on_host(graph.plan, rules) && graph.lanes[op.lanes[0]].kind == LaneKind::compute)
        continue;
      mutant.deps[op.dep_begin + d] = mutant.deps[op.dep_begin];
      ++op.dep_begin;
      --op.dep_count;
      EXPECT_FALSE(check_hazards(mutant).empty())
          << op_label(graph, i) << " without " << op_label(graph, dep);
    }
}

// The op leaves; those that waited for it wait for what it waited for.
ExecutionGraph without(const ExecutionGraph& g, OpId removed) {
  ExecutionGraph out = g;
  out.ops.clear();
  out.deps.clear();
  std::vector<OpId> before(g.deps_of(g.ops[removed]).begin(), g.deps_of(g.ops[removed]).end());
  for (OpId i = 0; i < removed; ++i)
    for (const LaneId lane : g.ops[removed].lanes)
      if (lane != kNoLane && (g.ops[i].lanes[0] == lane || g.ops[i].lanes[1] == lane)) before.push_back(i);
  const auto renumbered = [&](OpId id) { return id > removed ? id - 1 : id; };
  for (OpId i = 0; i < g.ops.size(); ++i) {
    if (i == removed) continue;
    std::vector<OpId> deps;
    for (const OpId dep : g.deps_of(g.ops[i]))
      if (dep == removed)
        deps.insert(deps.end(), before.begin(), before.end());
      else
        deps.push_back(dep);
    std::sort(deps.begin(), deps.end());
    deps.erase(std::unique(deps.begin(), deps.end()), deps.end());
    Op op = g.ops[i];
    op.dep_begin = static_cast<std::uint32_t>(out.deps.size());
    op.dep_count = static_cast<std::uint16_t>(deps.size());
    for (const OpId dep : deps) out.deps.push_back(renumbered(dep));
    out.ops.push_back(op);
  }
  return out;
}

TEST_P(Checker, CatchesEachMissingOp) {
  for (OpId i = 0; i < graph.ops.size(); ++i)
    EXPECT_TRUE(caught(without(graph, i), rules)) << "without " << op_label(graph, i);
}

TEST_P(Checker, CatchesEachShiftedRange) {
  for (OpId i = 0; i < graph.ops.size(); ++i)
    for (std::uint32_t o = 0; o < graph.ops[i].operand_count; ++o)
      for (const int shift : {-2, 2}) {  // bytes: one bf16 element
        ExecutionGraph mutant = graph;
        Operand& operand = mutant.operands[graph.ops[i].operand_begin + o];
        operand.begin += shift;
        operand.end += shift;
        EXPECT_TRUE(caught(mutant, rules))
            << op_label(graph, i) << (operand.write ? " writes" : " reads") << " buffer " << operand.buffer
            << " [" << operand.begin << ", " << operand.end << ")";
      }
}

// Two transfers in different order at their two ends: both ranks wait for ever.
TEST_P(Checker, CatchesSendsSwappedAtOneEnd) {
  const auto order = lane_orders(graph);
  int swapped = 0;
  for (std::size_t lane = 0; lane < order.size(); ++lane) {
    std::vector<std::size_t> sends;
    for (std::size_t k = 0; k < order[lane].size(); ++k)
      if (graph.ops[order[lane][k]].role == OpRole::send) sends.push_back(k);
    for (std::size_t k = 1; k < sends.size(); ++k) {
      const OpId a = order[lane][sends[k - 1]], b = order[lane][sends[k]];
      if (graph.ops[a].lanes != graph.ops[b].lanes) continue;
      auto mutant = order;
      std::swap(mutant[lane][sends[k - 1]], mutant[lane][sends[k]]);
      const auto problems = check_progress(graph, mutant);
      ASSERT_EQ(problems.size(), 1u) << op_label(graph, a) << " and " << op_label(graph, b);
      const std::string& circle = problems.front().value;
      EXPECT_TRUE(circle.find(op_label(graph, a)) != std::string::npos ||
                  circle.find(op_label(graph, b)) != std::string::npos)
          << circle;
      ++swapped;
    }
  }
  EXPECT_EQ(swapped > 0, graph.plan.pp > 1);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Checker, ::testing::ValuesIn(kLayouts));

// ---- any lawful plan, lowered by any rules

StackRules any_rules() {
  StackRules r;
  for (bool StackRules::*rule :
       {&StackRules::reduce_every_microbatch, &StackRules::zero3_reduce_every_microbatch,
        &StackRules::pipelined_update, &StackRules::param_gather_overlaps_forward,
        &StackRules::p2p_overlaps_compute_1f1b, &StackRules::p2p_overlaps_compute_interleaved,
        &StackRules::zero3_regather_in_backward, &StackRules::head_fused_with_loss, &StackRules::scatter_p2p,
        &StackRules::clip_gradients, &StackRules::fetch_modules, &StackRules::tied_gradients_apart,
        &StackRules::cp_ring})
    r.*rule = *rc::gen::arbitrary<bool>();
  r.prefetch_blocks = arbitrary::upto(0, 3);
  r.bucket_elements = *rc::gen::element<std::int64_t>(1, 20'000, 40'000'000);
  return r;
}

ParallelPlan small_plan() {
  ParallelPlan p = arbitrary::plan();
  p.tp = *rc::gen::element(1, 2, 4);
  p.cp = *rc::gen::element(1, 1, 2);
  p.pp = *rc::gen::element(1, 1, 2, 3);
  p.dp = *rc::gen::element(1, 2, 4);
  p.micro_batch = 1;
  p.vp = p.pp > 1 ? *rc::gen::element(1, 1, 2) : 1;
  p.sequence_parallel = p.sequence_parallel && p.tp > 1;
  p.overlap_tp = p.overlap_tp && p.tp > 1;
  if (p.pp == 1) p.schedule = PipelineSchedule::one_f_one_b;
  if (p.vp > 1) p.schedule = PipelineSchedule::interleaved;
  if (p.vp == 1 && p.schedule == PipelineSchedule::interleaved) p.schedule = PipelineSchedule::gpipe;
  p.shard_degree = p.zero_stage > 0 ? *rc::gen::element(0, 0, 1, 2) : 0;
  if (p.recompute.layers > 0) p.recompute.layers = 1;
  p.activation_offload = arbitrary::upto(0, 2);
  p.optimizer_offload = *rc::gen::element(0.0, 0.0, 0.5, 1.0, 0.01);
  p.chunks.clear();
  return p;
}

RC_GTEST_PROP(CheckerProperty, AcceptsEveryLawfulPlan, ()) {
  const ParallelPlan plan = small_plan();
  ModelSpec model = tiny_model(arbitrary::upto(1, 8));
  model.tied_embeddings = *rc::gen::arbitrary<bool>();
  model.normalized_head = *rc::gen::arbitrary<bool>();
  const TrainingSpec training = tiny_training(plan.dp * arbitrary::upto(1, 6));
  RC_PRE(validate(plan, model, training).empty());
  StackSpec stack;
  stack.rules = any_rules();
  RC_TAG(std::string(name(plan.schedule)));
  const auto problems = check(lower(model, training, flat_links(plan), plan, stack), stack.rules);
  RC_LOG() << plan_key(plan) << " layers " << model.n_layers << " tied " << model.tied_embeddings << " batch "
           << training.global_batch << "\n"
           << text(problems);
  RC_ASSERT(problems.empty());
}

}  // namespace
}  // namespace sextant
