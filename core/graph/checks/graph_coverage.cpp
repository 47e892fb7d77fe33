// The step is a whole training step: walks each stage's ops and hands what they do to the checks of core/graph/checks.
#include <algorithm>
#include <map>
#include <span>
#include <tuple>

#include "core/graph/checks/gradients.hpp"
#include "core/graph/checks/parameters.hpp"
#include "core/graph/checks/partial_sums.hpp"

namespace sextant {
namespace {

using namespace checks;

class StageWalk {
 public:
  StageWalk(const StageFacts& facts, ProblemList& problems)
      : facts_(facts), problems_(problems), parameters_(facts, problems), gradients_(facts, problems) {}

  void run() {
    for (OpId i = 0; i < facts_.graph.ops.size(); ++i)
      if (const Op& op = facts_.graph.ops[i];
          op.stage == facts_.stage ||
          (op.role == OpRole::tied_reduce && facts_.graph.lanes[op.lanes[1]].stage == facts_.stage))
        visit(i);
    gradients_.finish();
    parameters_.finish();
  }

 private:
  void visit(OpId i) {
    const Op& op = facts_.graph.ops[i];
    switch (op.role) {
      case OpRole::block:
        return block(i);
      case OpRole::update:
        return parameters_.update(i);
      case OpRole::param_gather:
        return parameters_.fetch(i);
      case OpRole::copy_in:
      case OpRole::copy_out:
        if (facts_.host_sums && op.bucket < facts_.n_buckets() && op.role == OpRole::copy_out)
          return gradients_.happens(i, op.bucket, Event::to_host);
        if (op.microbatch != kNone16) return;  // activations
        if (facts_.is_fetch(op)) return parameters_.fetch(i);
        if (op.bucket < facts_.n_buckets() && facts_.reads_gradient(op))
          return gradients_.happens(i, op.bucket, Event::to_host);
        return parameters_.bring_back(i);
      case OpRole::zero_grad:
        if (op.bucket < facts_.n_buckets()) return gradients_.happens(i, op.bucket, Event::clear);
        for (std::optional<std::size_t> last; const Operand& o : facts_.graph.operands_of(op))
          if (const auto b = facts_.bucket_of_gradient(o.buffer); b && b != last)
            gradients_.happens(i, *(last = b), Event::clear);
        return;
      case OpRole::tied_reduce:
        for (const Operand& o : facts_.graph.operands_of(op))
          if (const auto b = facts_.bucket_of_gradient(o.buffer); b && o.write)
            gradients_.happens(i, *b, Event::tied);
        return;
      case OpRole::sp_reduce:
        return gradients_.happens(i, op.bucket, Event::sp);
      case OpRole::grad_reduce:
        return gradients_.happens(i, op.bucket, Event::reduce);
      case OpRole::grad_replica_reduce:
        return gradients_.happens(i, op.bucket, Event::replica);
      case OpRole::grad_accumulate:
        return gradients_.happens(i, op.bucket, facts_.ring_gradients ? Event::accumulate : Event::join);
      case OpRole::norm_partial:
        return gradients_.happens(i, op.bucket, Event::norm);
      case OpRole::norm_reduce:
        return gradients_.norm_reduce(i);
      default:
        return;
    }
  }

  // Parameters read, gradients written.
  void block(OpId i) {
    const Op& op = facts_.graph.ops[i];
    const BlockKind kind = std::get<BlockWork>(facts_.graph.works[op.work]).kind;
    if (kind == BlockKind::residual || kind == BlockKind::qk_sums) return;
    const auto site = facts_.by_site.find({op.chunk, op.layer, kind});
    if (!problems_.require(site != facts_.by_site.end(), i, "a place that holds parameters of its stage",
                           "none"))
      return;
    std::vector<Access> reads, writes, added;
    for (const Operand& o : facts_.graph.operands_of(op)) {
      const BufferKind at = facts_.graph.buffers[o.buffer].kind;
      if (!o.write && (at == BufferKind::parameter || facts_.units.contains(o.buffer)))
        reads.push_back({o.buffer, false, {o.begin, o.end}});
      if (at == BufferKind::gradient || facts_.gradient_ring.contains(o.buffer))
        (o.write ? writes : added).push_back({o.buffer, true, {o.begin, o.end}});
    }
    for (const std::size_t p : site->second)
      if (!(kind == BlockKind::norm && op.layer != kNone16)) parameters_.count_use(p, op.pass);
    const bool uses = reads_parameters(facts_.graph.model, kind, op.pass);
    const bool fills = op.pass == Pass::backward || op.pass == Pass::backward_weight;
    std::vector<std::size_t> mine = site->second;
    if (kind == BlockKind::norm && op.layer != kNone16) {
      mine = {which_norm(op, mine)};
      parameters_.count_use(mine.front(), op.pass);
    }
    problems_.require(reads.size() == (uses ? mine.size() : 0), i,
                      fmt::format("{} parameters read", uses ? mine.size() : 0), reads.size());
    problems_.require(writes.size() == (fills ? mine.size() : 0), i,
                      fmt::format("gradients of {} parameters written", fills ? mine.size() : 0),
                      writes.size());
    for (std::size_t k = 0; k < mine.size(); ++k) {
      if (uses && k < reads.size()) parameters_.use(i, facts_.layout.parameters[mine[k]], reads[k]);
      if (fills && k < writes.size()) {
        const bool adds = std::ranges::find(added, writes[k]) != added.end();
        gradients_.fill(i, mine[k], kind == BlockKind::head, writes[k], adds);
      }
    }
  }

  // Which of a layer's two norms: forward the attention's comes first, backward the MLP's.
  std::size_t which_norm(const Op& op, const std::vector<std::size_t>& norms) {
    const int before = norms_[{op.layer, op.microbatch, op.pass}]++;
    const bool forward = op.pass == Pass::forward || op.pass == Pass::recompute;
    const bool attention = (before == 0) == forward;
    for (const std::size_t n : norms)
      if ((facts_.layout.parameters[n].kind == ParameterKind::norm_attention) == attention) return n;
    return norms.front();
  }

  const StageFacts& facts_;
  ProblemList& problems_;
  ParameterCheck parameters_;
  GradientCheck gradients_;
  std::map<std::tuple<std::uint16_t, std::uint16_t, Pass>, int> norms_;  // of a layer, so far
};

}  // namespace

std::vector<Problem> check_coverage(const ExecutionGraph& g, const StackRules& rules) {
  ProblemList problems(g);
  for (int stage = 0; stage < g.plan.pp; ++stage) {
    const StageFacts facts(g, rules, stage);
    if (facts.gradients.size() == facts.n_buckets() && facts.has_head_gradient())
      StageWalk(facts, problems).run();
    else
      problems.add(fmt::format("stage {}", stage),
                   fmt::format("{} resident gradient buffers", facts.gradients.size()),
                   fmt::format("{}, one for each bucket, and one more for a tied head that is summed apart",
                               facts.n_buckets()));
  }
  check_partial_sums(g, problems);
  return problems.take();
}

}  // namespace sextant
