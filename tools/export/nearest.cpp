#include "tools/export/nearest.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "planner/simulation/robust.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

Question question_under(const Question& asked, const ChosenTarget& chosen,
                        const std::filesystem::path& presets) {
  Question q = asked;
  if (q.stack.name != chosen.target->stack &&
      (chosen.target->twin.empty() || q.stack.name != chosen.target->twin))
    q.stack = load_stack(chosen.target->stack, presets, q.cluster.device.generation);
  q.training.stack = q.stack.name;
  return q;
}

Prediction predict_question(const Question& question, const std::filesystem::path& presets) {
  const Planning planning(question, presets);
  return predict_under(planning.predicted_job(), *planning.question().plan, RankBy::expected);
}

namespace {

constexpr std::size_t kMaxCandidates = 64;
constexpr int kMaxChanges = 12;

PlanFile file_of(const Question& q) {
  PlanFile file;
  file.model = q.model;
  file.training = q.training;
  file.cluster = q.cluster;
  file.stack = q.stack;
  file.plan = *q.plan;
  return file;
}

struct Candidate {
  PlanFile file;
  std::vector<std::string> changes;
};

class Search {
 public:
  explicit Search(const ChosenTarget& chosen) : chosen_(chosen) {}

  void visit(const Candidate& at) {
    if (found_.size() >= kMaxCandidates || static_cast<int>(at.changes.size()) > kMaxChanges) return;
    if (!seen_.insert(plan_key(at.file.plan) + formats(at.file)).second) return;
    const auto missing = inexpressible(chosen_, at.file.stack, at.file);
    if (missing.empty()) {
      if (validate(at.file.plan, at.file.model, at.file.training).empty()) found_.push_back(at);
      return;
    }
    for (const PlanChange& change : missing.front().changes) {
      Candidate next = at;
      change.apply(next.file);
      next.changes.push_back(
          fmt::format("{} {} -> {}", missing.front().field, missing.front().value, change.what));
      visit(next);
    }
  }

  // Less memory for those that do not fit: the target's own recomputation, smaller micro-batches.
  void save_memory() {
    const std::vector<Candidate> roots = found_;
    for (const Candidate& root : roots) {
      for (const RecomputeKind kind : {RecomputeKind::selective, RecomputeKind::full})
        if (root.file.plan.recompute.kind != kind)
          change(root, fmt::format("recompute {}", name(kind)),
                 [kind](ParallelPlan& p) { p.recompute = {.kind = kind, .layers = -1}; });
      for (int micro = root.file.plan.micro_batch / 2; micro >= 1; micro /= 2)
        change(root, fmt::format("micro_batch {}", micro),
               [micro](ParallelPlan& p) { p.micro_batch = micro; });
      change(root, "recompute full, micro_batch 1", [](ParallelPlan& p) {
        p.recompute = {.kind = RecomputeKind::full, .layers = -1};
        p.micro_batch = 1;
      });
    }
  }

  const std::vector<Candidate>& found() const { return found_; }

 private:
  static std::string formats(const PlanFile& file) {
    const TrainingSpec& t = file.training;
    return fmt::format(" {} {} {} {} {}", name(t.compute), name(t.parameter), name(t.gradient),
                       name(t.reduction), name(t.optimizer_state));
  }

  template <class Change>
  void change(const Candidate& root, const std::string& what, const Change& apply) {
    Candidate next = root;
    apply(next.file.plan);
    if (!inexpressible(chosen_, next.file.stack, next.file).empty()) return;
    if (!validate(next.file.plan, next.file.model, next.file.training).empty()) return;
    if (!seen_.insert(plan_key(next.file.plan) + formats(next.file)).second) return;
    next.changes.push_back("to fit: " + what);
    found_.push_back(next);
  }

  ChosenTarget chosen_;
  std::set<std::string> seen_;
  std::vector<Candidate> found_;
};

bool better(const NearestPlan& a, const NearestPlan& b) {
  if (a.fits() != b.fits()) return a.fits();
  if (!a.fits()) return a.prediction.memory.peak < b.prediction.memory.peak;
  return a.prediction.step < b.prediction.step;
}

std::optional<NearestPlan> best_of(const std::vector<Candidate>& found, const Question& asked,
                                   const std::filesystem::path& presets) {
  std::optional<NearestPlan> best;
  for (const Candidate& c : found) {
    Question q = asked;
    q.plan = c.file.plan;
    q.training = c.file.training;
    Prediction prediction = predict_question(q, presets);
    NearestPlan next{std::move(q), std::move(prediction), c.changes};
    if (!best || better(next, *best)) best = std::move(next);
  }
  return best;
}

}  // namespace

std::optional<NearestPlan> nearest_plan(const Question& asked, const ChosenTarget& chosen,
                                        const std::filesystem::path& presets) {
  Search search(chosen);
  search.visit({file_of(asked), {}});
  auto best = best_of(search.found(), asked, presets);
  if (!best || best->fits()) return best;
  search.save_memory();
  return best_of(search.found(), asked, presets);
}

}  // namespace sextant
