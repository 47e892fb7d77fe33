// `sextant plan`: the best layouts of a model on a cluster, ranked, and what became of all the others; the same for
// other objectives, other sizes of the cluster, and a cluster that varies.
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "planner/simulation/stage_memory.hpp"
#include "tools/verbs/plan_answers.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {

// The OOM risk from which on no layout is looked for; 1 = whatever fits. Without --max-oom-chance it is the rule's where the first
// one found is the answer; where layouts are compared, a recommendation minds it.
double most_oom_chance(const PlanOptions& options, const std::filesystem::path& presets) {
  if (options.max_oom_chance > 0) return options.max_oom_chance;
  const bool takes_first = !options.jitter.ranked_by.empty() || options.objective == "fewest-gpus";
  return takes_first && !options.daring ? load_decision_rule(presets).most_oom_chance : 1;
}

ExitCode run(Session& session, PlanOptions options) {
  settle(options);
  options.question.searches = true;
  check_output("--output", options.output, files_read(options.question));
  Question asked = read_question(session, options.question);
  const Bytes memory = asked.cluster.device.memory;
  const double chance = most_oom_chance(options, session.presets());
  const Bytes limit = most_needed(asked.cluster.device, asked.stack, chance);
  if (limit < memory)
    asked.notes.push_back(fmt::format(
        "layouts of at most {:.1f} of {:.1f} GiB alone: their OOM risk is at most {:g} %{}", gib(limit),
        gib(memory), 100 * chance, options.max_oom_chance > 0 ? "" : "; --daring takes all that fit"));
  const Planning planning(std::move(asked), session.presets());
  const Question& q = planning.question();
  const SearchSpace space = default_space(q.model, q.training, q.cluster.device, q.cluster.gpus(), q.limits);
  Searching searching(session.terminal, options.budget_s);
  if (limit < memory) searching.limit_memory(limit);
  const Asking a{session, options, planning, space, searching};
  if (options.pareto) return answer_front(a);
  if (!options.jitter.ranked_by.empty()) return answer_robust(a);
  if (options.objective == "least-memory") return answer_lowest_memory(a);
  if (options.objective == "fewest-gpus") return answer_fewest(a);
  if (options.objective == "tokens-per-dollar" || options.objective == "goodput" || !options.scale.empty())
    return answer_curve(a);
  return answer_fastest(a);
}

}  // namespace

Verb plan_verb() {
  return {
      .name = "plan",
      .summary = "find the best layout of a model on a cluster",
      .description =
          "Searches every layout of the space (tensor, sequence, context, pipeline and data parallel "
          "degrees, "
          "schedules, ZeRO, recompute, offload, buckets, overlap, placement) and ranks the best by simulated "
          "step "
          "time, or by another objective. Every other layout is counted by what became of it. Steps closer "
          "than 2 % "
          "are called a tie. With --profile the best are ranked again by measured times, "
          "without a proof. Ctrl-C or --budget-s stops early with the best so far.",
      .examples =
          {{"LLaMA-2-13B on 64 A100", "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb"},
           {"pin and narrow fields, keep the plan",
            "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb --fix tp=2 --limit 'pp<=4,rec!=full' "
            "-o plan.json"},
           {"a slower network, another framework",
            "sextant plan --model llama-2-7b --cluster 4x8xa100-80gb --stack torchtitan --set "
            "fabric.bandwidth_GBps=50 --fix cp=1,ao=0,oo=0 --json"},
           {"the fastest that runs out of memory in less than one case of twenty",
            "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb --max-oom-chance 0.05"},
           {"the scaling curve",
            "sextant plan --model llama-2-7b --cluster 8x8xa100-80gb --scale 8,16,...,64 --fix cp=1"},
           {"the fewest GPUs that train two trillion tokens in 90 days",
            "sextant plan --model llama-2-7b --cluster 16x8xa100-80gb --objective fewest-gpus --tokens 2T "
            "--deadline 90d"},
           {"the cheapest tokens",
            "sextant plan --model llama-2-7b --cluster 8x8xa100-80gb --objective tokens-per-dollar "
            "--price-per-gpu-hour 2"},
           {"how often to save when a node fails every 5,000 hours, and what is left",
            "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb --objective goodput --node-mtbf-hours "
            "5000 "
            "--storage-GBps 20 --restart-s 300"},
           {"the best layout when ranks and network vary",
            "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb --rank-by p90 --straggler-sigma 0.02 "
            "--network-sigma 0.1"},
           {"a plan, the times of its operations on this machine, layouts ranked by these",
            "sextant plan --model stories-260k --cluster laptop --stack sextant --seq-len 64 --global-batch "
            "8 "
            "-o small.json"},
           {"", "sextant profile --for small.json -o profile.json"},
           {"",
            "sextant plan --model stories-260k --cluster laptop --stack sextant --seq-len 64 --global-batch "
            "8 "
            "--profile profile.json"}},
      .define = [](CLI::App& app) -> Run {
        auto options = std::make_shared<PlanOptions>();
        add_plan_options(app, *options);
        return [options](Session& session) { return run(session, *options); };
      }};
}

}  // namespace sextant
