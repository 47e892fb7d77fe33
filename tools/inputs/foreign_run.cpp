#include "tools/inputs/foreign_run.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/cluster/cluster_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/plan_key.hpp"
#include "core/plan/stack_spec.hpp"
#include "tools/import/import_file.hpp"

namespace sextant {

ImportedRun read_foreign_run(const std::string& file, const std::filesystem::path& presets, int layers) {
  return import_file(
      file, presets,
      [](const std::string& name) {
        const char* value = std::getenv(name.c_str());
        return value ? std::optional<std::string>(value) : std::nullopt;
      },
      layers);
}

void require_beside(const ImportedRun& run, const QuestionOptions& options) {
  if (options.cluster.empty())
    throw UsageError(fmt::format("--cluster is missing: {} states {}\n  for example: --cluster {}x8xh100",
                                 run.file,
                                 run.gpus ? fmt::format("that it starts {} ranks, and not on what", *run.gpus)
                                          : "nothing about the machine",
                                 run.gpus ? std::max(1, *run.gpus / 8) : 8));
  if (options.model.empty() && !run.model && run.model_name.empty())
    throw UsageError(
        fmt::format("--model is missing: {} names no model\n  for example: --model llama-2-13b", run.file));
}

void check_imported_model(const ImportedRun& run, const ModelSpec& model) {
  if (model.vocab_size == 0)
    throw ConfigError(Problem{run.file, "", "no size of the vocabulary",
                              "one that it states, or a tokenizer that is known here",
                              "--set model.vocab_size=N states it"});
}

void use_run(const ImportedRun& run, bool searches, Question& q) {
  SizedRun sized;
  try {
    sized = size_run(run, q.cluster.gpus(), q.cluster.node.gpus);
    q.from->layout = sized.plan;
    if (!searches) q.plan = sized.plan;
  } catch (const ConfigError& error) {
    if (!searches) throw;
    q.from->problem = error.problems().front().value + " is not " + error.problems().front().expected;
    sized.global_batch = run.global_batch.value_or(0);
  }
  if (run.seq_len) q.training.seq_len = *run.seq_len;
  if (sized.global_batch > 0) q.training.global_batch = sized.global_batch;
  use_formats(run.formats, q.training);
  q.from->notes = std::move(sized.notes);
}

void check_imported_plan(const ImportedRun& run, const Question& q) {
  std::vector<Problem> problems = validate(*q.plan, q.model, q.training);
  for (Problem& p : problems)
    if (p.hint.empty())
      p.hint = run.gpus && *run.gpus != q.plan->world()
                   ? fmt::format(
                         "it starts {} ranks, here are {} GPUs: --cluster of as many, --global-batch or "
                         "--plan of your own",
                         *run.gpus, q.plan->world())
                   : "--global-batch, --plan and --set win over the file";
  for (Problem& p : problems) p.file = run.file;
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

void add_import_notes(const ImportedRun& run, Question& q) {
  const std::vector<std::string> said = import_notes(run, q.stack);
  q.from->notes.insert(q.from->notes.begin(), said.begin(), said.end());
  q.notes.insert(q.notes.end(), q.from->notes.begin(), q.from->notes.end());
}

void refuse_foreign_plan(const std::string& file, const FileKind& kind, const std::string& cluster_name,
                         const std::filesystem::path& presets) {
  std::string hint = fmt::format("--from {} of plan, simulate and explain takes it", file);
  try {
    const ImportedRun run = read_foreign_run(file, presets);
    const ClusterSpec cluster = load_cluster(cluster_name, presets);
    ParallelPlan plan = size_run(run, cluster.gpus(), cluster.node.gpus).plan;
    suit_stack(run, load_stack(run.stack, presets, cluster.device.generation).can, plan);
    hint = fmt::format("as a key its layout is {} (--stack {}); {}", plan_key(plan), run.stack, hint);
  } catch (const ConfigError&) {
    // Without a cluster, or for one that it does not fit, it has no key.
  }
  throw ConfigError(Problem{file, "", kind.what, "a plan file, or a plan key", std::move(hint)});
}

}  // namespace sextant
