#include "tools/output/goodput_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace sextant {
namespace {

std::string duration(double seconds) {
  if (seconds >= 2 * 86400) return fmt::format("{:.1f} days", seconds / 86400);
  if (seconds >= 2 * 3600) return fmt::format("{:.1f} h", seconds / 3600);
  if (seconds >= 120) return fmt::format("{:.1f} min", seconds / 60);
  return fmt::format("{:.2g} s", seconds);
}

double checkpoint_GB(const Job& job) {
  return static_cast<double>(checkpoint_size(job.model, job.training, job.stack).total().v) / 1e9;
}

// Host memory of each rank for the snapshot that is written while training continues, beyond the predicted memory.
double snapshot_GiB(const Job& job, const ParallelPlan& plan) {
  return gib(checkpoint_size(job.model, job.training, job.stack).total()) / plan.world();
}

}  // namespace

std::string goodput_text(const Job& job, const ParallelPlan& plan, Seconds step, SaveKind kind) {
  const auto save = save_times(job, plan.world());
  if (!save)
    return job.cluster.failures.node_mtbf_hours > 0
               ? "failures are stated, storage is not: --storage-GBps gives what checkpoints cost"
               : "";
  const double gb = checkpoint_GB(job);
  const std::string size = gb >= 1000 ? fmt::format("{:.2f} TB", gb / 1000) : fmt::format("{:.2f} GB", gb);
  const std::string price = fmt::format(
      "checkpoints: {} in {}, pausing {}{}", size, duration((save->copy + save->write).v),
      duration(save->pause(kind).v),
      kind == SaveKind::blocking
          ? ""
          : fmt::format(" while each rank copies {:.2f} GiB to host memory", snapshot_GiB(job, plan)));
  const auto g = goodput(job, plan, step, kind);
  if (!g) return price + "; --node-mtbf-hours states how often one pays";
  const GoodputSplit split = goodput_split(*failure_model(job, plan.world(), kind), Seconds(g->interval_s));
  return price + fmt::format(
                     "; a failure every {}, restarts of {}: save every {} steps ({}); "
                     "goodput {:.2f} % "
                     "({:.2f} % saving, {:.2f} % redone, {:.2f} % restarting), {:.0f} lasting tokens/s",
                     duration(g->job_mtbf_s), duration(failure_model(job, plan.world(), kind)->restart.v),
                     g->interval_steps, duration(g->interval_s), 100 * g->goodput, 100 * split.saving,
                     100 * split.redone, 100 * split.restarting, g->tokens_per_s);
}

void add_goodput(nlohmann::ordered_json& j, const Job& job, const ParallelPlan& plan, Seconds step,
                 SaveKind kind) {
  j["checkpoint_GB"] = checkpoint_GB(job);
  if (const auto save = save_times(job, plan.world())) {
    j["checkpoint_save_s"] = (save->copy + save->write).v;
    j["checkpoint_pause_s"] = save->pause(kind).v;
  }
  const auto g = goodput(job, plan, step, kind);
  if (!g) {
    j["goodput"] = nullptr;
    return;
  }
  const GoodputSplit split = goodput_split(*failure_model(job, plan.world(), kind), Seconds(g->interval_s));
  j["goodput"] = {{"share", g->goodput},
                  {"tokens_per_s", g->tokens_per_s},
                  {"interval_s", g->interval_s},
                  {"interval_steps", g->interval_steps},
                  {"save_s", g->save_s},
                  {"pause_s", g->pause_s},
                  {"job_mtbf_s", g->job_mtbf_s},
                  {"saving_share", split.saving},
                  {"redone_share", split.redone},
                  {"restarting_share", split.restarting},
                  {"snapshot_GiB", kind == SaveKind::blocking ? 0 : snapshot_GiB(job, plan)}};
}

}  // namespace sextant
