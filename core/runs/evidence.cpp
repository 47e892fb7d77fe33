#include "core/runs/evidence.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"

namespace sextant {

namespace {

constexpr auto kCellFields = [](auto& io, auto& c) {
  io.required("stack", c.stack);
  io.required("generation", c.generation);
  io.required("tp", c.tp);
  io.required("pp", c.pp);
  io.required("cp", c.cp);
  io.required("offload", c.offload);
  io.required("zero_stage", c.zero_stage, between(0, 3));
  io.required("runs", c.runs, at_least(1));
  io.required("most_tp", c.most_tp, at_least(1));
  io.required("most_pp", c.most_pp, at_least(1));
  io.required("most_cp", c.most_cp, at_least(1));
  io.required("most_vp", c.most_vp, at_least(1));
  io.required("most_gpus", c.most_gpus, at_least(1));
  io.optional("fewest_cp_tokens", c.fewest_cp_tokens, at_least(0));
};

constexpr auto kEvidenceFileFields = [](auto& io, auto& f) {
  io.ignored("about");
  io.required("families", f.families);
  io.required("cells", f.cells);
};

// All kinds of b, and perhaps more ways to split the model.
bool covers(const EvidenceCell& a, const EvidenceCell& b) {
  return a.tp >= b.tp && a.pp >= b.pp && a.cp >= b.cp && a.offload == b.offload &&
         a.zero_stage == b.zero_stage;
}
bool same_layouts(const EvidenceCell& a, const EvidenceCell& b) { return covers(a, b) && covers(b, a); }

}  // namespace

void from_json(const nlohmann::json& j, EvidenceCell& c) { read_object(j, c, kCellFields); }
void to_json(nlohmann::json& j, const EvidenceCell& c) { write_object(j, c, kCellFields); }

EvidenceCell evidence_cell(const std::string& stack, const std::string& generation, const ParallelPlan& p,
                           int seq_len) {
  return {.stack = stack,
          .generation = generation,
          .tp = p.tp > 1,
          .pp = p.pp > 1,
          .cp = p.cp > 1,
          .offload = p.optimizer_offload > 0 || p.parameter_offload || p.activation_offload > 0,
          .zero_stage = p.shards() > 1 ? p.zero_stage : 0,
          .runs = 1,
          .most_tp = p.tp,
          .most_pp = p.pp,
          .most_cp = p.cp,
          .most_vp = p.vp,
          .most_gpus = p.world(),
          .fewest_cp_tokens = p.cp > 1 ? seq_len / p.cp : 0};
}

void add_run(std::vector<EvidenceCell>& cells, const EvidenceCell& run) {
  const auto kind = std::ranges::find_if(cells, [&](const EvidenceCell& c) {
    return c.stack == run.stack && c.generation == run.generation && same_layouts(c, run);
  });
  if (kind == cells.end()) {
    cells.push_back(run);
    return;
  }
  kind->runs += run.runs;
  kind->most_tp = std::max(kind->most_tp, run.most_tp);
  kind->most_pp = std::max(kind->most_pp, run.most_pp);
  kind->most_cp = std::max(kind->most_cp, run.most_cp);
  kind->most_vp = std::max(kind->most_vp, run.most_vp);
  kind->most_gpus = std::max(kind->most_gpus, run.most_gpus);
  kind->fewest_cp_tokens = std::min(kind->fewest_cp_tokens, run.fewest_cp_tokens);
}

bool EvidenceTable::one_family(const std::string& stack, const std::string& other) const {
  return stack == other || std::ranges::any_of(families, [&](const std::vector<std::string>& family) {
           const auto has = [&](const std::string& name) {
             return std::ranges::find(family, name) != family.end();
           };
           return has(stack) && has(other);
         });
}

namespace {

template <class Counts>
EvidenceCell largest_of(const std::vector<EvidenceCell>& cells, const Counts& counts) {
  EvidenceCell most;
  for (const EvidenceCell& c : cells) {
    if (!counts(c)) continue;
    most.runs += c.runs;
    most.most_tp = std::max(most.most_tp, c.most_tp);
    most.most_pp = std::max(most.most_pp, c.most_pp);
    most.most_cp = std::max(most.most_cp, c.most_cp);
    most.most_vp = std::max(most.most_vp, c.most_vp);
    most.most_gpus = std::max(most.most_gpus, c.most_gpus);
    most.offload = most.offload || c.offload;
  }
  return most;
}

constexpr auto kAnyRun = [](const EvidenceCell&) { return true; };

}  // namespace

EvidenceCell EvidenceTable::largest(const std::string& stack) const {
  constexpr int kFew = 20;
  const EvidenceCell own =
      largest_of(cells, [&](const EvidenceCell& c) { return one_family(stack, c.stack); });
  return own.runs >= kFew ? own : largest_of(cells, kAnyRun);
}

EvidenceCell EvidenceTable::not_far(const std::string& stack) const {
  const EvidenceCell own = largest(stack), any = largest_of(cells, kAnyRun);
  EvidenceCell most = own;
  const auto reach = [&](int EvidenceCell::*degree) {
    most.*degree = own.*degree > 1 ? kFarBeyond * own.*degree : std::max(any.*degree, kFarBeyond);
  };
  reach(&EvidenceCell::most_tp);
  reach(&EvidenceCell::most_pp);
  reach(&EvidenceCell::most_cp);
  reach(&EvidenceCell::most_vp);
  return most;
}

int EvidenceTable::fewest_cp_tokens() const {
  int fewest = 0;
  for (const EvidenceCell& c : cells)
    if (c.cp && (fewest == 0 || c.fewest_cp_tokens < fewest)) fewest = c.fewest_cp_tokens;
  return fewest;
}

Evidence EvidenceTable::of(const std::string& stack, const std::string& generation, const ParallelPlan& plan,
                           int seq_len) const {
  Evidence out;
  const EvidenceCell mine = evidence_cell(stack, generation, plan, seq_len);
  for (const EvidenceCell& c : cells) {
    if (one_family(stack, c.stack)) out.of_stack += c.runs;
    if (c.generation != generation || !covers(c, mine)) continue;
    out.covering += c.runs;
    if (one_family(stack, c.stack)) out.covering_of_stack += c.runs;
    if (!same_layouts(c, mine)) continue;
    out.near += c.runs;
    if (one_family(stack, c.stack)) out.near_of_stack += c.runs;
    if (c.stack == stack) out.near_own += c.runs;
  }
  const EvidenceCell most = largest(stack), reach = not_far(stack);
  const auto beyond = [&](const char* what, int n, int EvidenceCell::*degree) {
    const int measured = most.*degree;
    if (n <= measured) return;
    out.extrapolates.push_back(
        fmt::format("{}{} ({})", what, n,
                    measured > 1 ? fmt::format("measured to {}", measured) : std::string("not measured")));
    if (n > reach.*degree) out.far.push_back(out.extrapolates.back());
    out.doublings += std::log2(static_cast<double>(n) / measured);
  };
  beyond("TP", plan.tp, &EvidenceCell::most_tp);
  beyond("PP", plan.pp, &EvidenceCell::most_pp);
  beyond("CP", plan.cp, &EvidenceCell::most_cp);
  beyond("VP", plan.vp, &EvidenceCell::most_vp);
  if (const int fewest = fewest_cp_tokens(); mine.cp && mine.fewest_cp_tokens < fewest) {
    out.extrapolates.push_back(
        fmt::format("CP{} on {} tokens each (measured from {})", plan.cp, mine.fewest_cp_tokens, fewest));
    if (mine.fewest_cp_tokens * kFarBeyond <= fewest) out.far.push_back(out.extrapolates.back());
    out.doublings += std::log2(static_cast<double>(fewest) / std::max(mine.fewest_cp_tokens, 1));
  }
  if (mine.offload && !most.offload) out.extrapolates.emplace_back("offload (not measured)");
  return out;
}

EvidenceTable load_evidence(const std::filesystem::path& preset_dir) {
  const auto path = preset_dir / "calibration/evidence.json";
  EvidenceTable table;
  with_file(path.string(), [&] { read_object(read_json_file(path), table, kEvidenceFileFields); });
  return table;
}

std::string evidence_json_text(const EvidenceTable& table) {
  std::string text =
      "{\n  \"about\": \"Measured runs by software stack, generation of devices and kinds of parallelism, "
      "with "
      "the largest degrees: sextant validate RUNS --write-evidence FILE. families: stacks built on the same "
      "code.\",\n  \"families\": [";
  const char* gap = "\n    ";
  for (const std::vector<std::string>& family : table.families) {
    text += gap + nlohmann::json(family).dump();
    gap = ",\n    ";
  }
  text += "\n  ],\n  \"cells\": [";
  gap = "\n    ";
  for (const EvidenceCell& c : table.cells) {
    text += gap + nlohmann::json(c).dump();
    gap = ",\n    ";
  }
  return text + "\n  ]\n}\n";
}

}  // namespace sextant
