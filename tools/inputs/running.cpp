#include "tools/inputs/running.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "core/plan/plan_links.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/simulation/predict.hpp"
#include "planner/simulation/simulate.hpp"
#include "runtime/execution/stage_view.hpp"
#include "tools/inputs/file_kind.hpp"
#include "tools/inputs/launch_environment.hpp"
#include "tools/inputs/machine.hpp"

namespace sextant {
namespace {

LinkShape shape_of(const ClusterSpec& c) {
  LinkShape shape;
  shape.ranks_per_node = c.node.gpus;
  shape.node_bandwidth = c.node.link_bandwidth;
  shape.node_latency = c.node.link_latency;
  shape.network_bandwidth = c.fabric.bandwidth * c.fabric.efficiency;
  shape.network_latency = c.fabric.latency;
  return shape;
}

// Ranks of the job that share this machine; `otherwise` when nobody says so.
int local_ranks(int world, int otherwise) {
  const int n = launched_local_ranks().value_or(otherwise);
  return n > 0 ? std::min(n, world) : world;
}

// What a GPU run cannot do here, with the reason, before anything is read or lowered.
void require_gpu(const RunningOptions& options) {
  const auto refuse = [](std::string found, std::string hint) {
    throw ConfigError(
        Problem{"--device", "", std::move(found), "cpu, or cuda with a usable GPU", std::move(hint)});
  };
  if (options.shaped) refuse("cuda with --shaped", "emulated links are for CPU ranks");
  std::string why;
  const auto gpus = cuda_gpus(why);
  if (gpus.empty()) refuse("cuda", why);
  const auto own = static_cast<std::size_t>(options.processes() ? launched_gpu() : 0);
  if (own >= gpus.size())
    refuse(fmt::format("cuda with {} ranks or more on this machine", own + 1),
           fmt::format("it has {} GPU{}, and NCCL wants one for each rank; --comm local shares one",
                       gpus.size(), gpus.size() == 1 ? "" : "s"));
  if (!gpus[own].refused.empty()) refuse("cuda", gpus[own].refused);
  if (options.processes() && nccl_version(why).empty())
    refuse(fmt::format("cuda with --comm {}", options.comm), why);
  if (const std::string missing = cuda_libraries().missing; !missing.empty()) refuse("cuda", missing);
}

// Ranks of the job whose memory is that of one process, and of one machine.
struct RanksHere {
  int in_process = 1, on_machine = 1;
};
RanksHere ranks_here(int world, const RunningOptions& options) {
  if (!options.processes()) return {world, world};
  const std::string master = process_environment("MASTER_ADDR");
  const bool here = options.comm == "env" && (master == "localhost" || master.starts_with("127."));
  return {1, local_ranks(world, here ? world : 1)};
}

// Ranks allocate to the byte what their stage needs. Better to say now that a stage is beyond the device it was planned for,
// or all of a process or a machine beyond what is here; of ranks on a GPU, what they keep on the host.
void require_memory(const std::string& path, const PlanFile& file, const ExecutionGraph& graph,
                    RanksHere here, bool on_gpu) {
  const char* smaller = "plan for a smaller model, micro-batch or --seq-len, or for more ranks";
  std::int64_t all = 0, host_most = 0;
  for (int stage = 0; stage < graph.plan.pp; ++stage) {
    const ArenaPlan arena = plan_arena(graph, StageView(graph, stage));
    const auto [device, host] = arena.extent;
    if (device > file.cluster.device.memory.v)
      throw ConfigError(Problem{path, "plan",
                                fmt::format("{:.3f} GiB for a rank of stage {}", gib(Bytes(device)), stage),
                                fmt::format("at most the {:.3f} GiB of the {} it was planned for",
                                            gib(file.cluster.device.memory), file.cluster.device.name),
                                smaller});
    host_most = std::max(host_most, host);
    all += (on_gpu ? host : device + host) * (graph.plan.world() / graph.plan.pp);
  }
  const Bytes on_host = Bytes(host_most * std::min(graph.plan.world(), file.cluster.node.gpus));
  if (on_host > file.cluster.node.host_memory)
    throw ConfigError(Problem{path, "plan", fmt::format("{:.4g} GiB on the host for a node", gib(on_host)),
                              fmt::format("at most the {:.4g} GiB of the node it was planned for",
                                          gib(file.cluster.node.host_memory)),
                              "plan with less offload (oo, po, ao), or for more nodes"});
  const HostMachine machine = inspect_machine();
  const auto require = [&](Bytes need, Bytes most, int ranks, const char* of, const char* whose) {
    if (most.v <= 0 || need <= most) return;
    const int digits = gib(need) < 10 ? 3 : 1;
    throw ConfigError(Problem{path, "plan",
                              fmt::format("{:.{}f} GiB for the {} of this {}", gib(need), digits,
                                          ranks == 1 ? "one rank" : fmt::format("{} ranks", ranks), of),
                              fmt::format("at most the {:.{}f} GiB {}", gib(most), digits, whose), smaller});
  };
  const std::int64_t each = all / graph.plan.world();
  // Beside what is allocated, threads reserve addresses for stacks and heaps and a library its code, which crashes without.
  const std::int64_t reserved = (640 + std::int64_t{64} * here.in_process) << 20;
  if (!on_gpu)
    require(Bytes(each * here.in_process + reserved), machine.process_memory, here.in_process, "process",
            "that ulimit -v leaves a process");
  require(Bytes(each * here.on_machine), machine.memory, here.on_machine, "machine", "that it has");
}

}  // namespace

void add_rank_options(CLI::App& app, RunningOptions& o) {
  add_text(
      app,
      {.flag = "--device",
       .metavar = "cpu|cuda",
       .text =
           "where ranks compute: threads of this processor, or this machine's first GPU, which they share"},
      o.device);
  add_flag(app,
           {.flag = "--shaped",
            .metavar = "",
            .text = "emulate latency and bandwidth of the cluster's links between ranks"},
           o.shaped);
  add_number(app,
             {.flag = "--threads",
              .metavar = "N",
              .text = "threads in the GEMMs of a rank; 0 = cores / ranks",
              .min = 0,
              .max = 1024},
             o.threads);
}

void add_profile_option(CLI::App& app, std::string& file_or_name) {
  add_text(app,
           {.flag = "--profile",
            .metavar = "FILE",
            .text = "measured operation times of the machine (sextant profile; shipped ones: sextant presets "
                    "profiles)"},
           file_or_name);
}

void add_comm_option(CLI::App& app, RunningOptions& o) {
  add_text(app,
           {.flag = "--comm",
            .metavar = "local|mpi|env",
            .text = "ranks as threads of this process, one per MPI process, or one per process of another "
                    "launcher that sets ranks in the environment: torchrun, srun. Default: "
                    "mpi or env in a process that mpirun, srun or torchrun started with others, else local"},
           o.comm);
}

std::optional<CudaDeviceOptions> gpu_of(const RunningOptions& options) {
  if (options.device != "cuda") return std::nullopt;
  require_gpu(options);
  // A GEMM that was chosen by the clock may be another one in the next run.
  return CudaDeviceOptions{.ordinal = options.processes() ? launched_gpu() : 0,
                           .rehearses = options.gemms == "fast"};
}

std::vector<SlowKernels> slow_kernels(const RunningOptions& options) {
  if (options.device != "cuda" || options.gemms == "exact") return {};  // which asks for own tiles
  std::vector<SlowKernels> slow;
  const auto add = [&](const char* key, const char* what, const char* library, const std::string& why) {
    if (!why.empty())
      slow.push_back(
          {key, fmt::format("{} in own tiles, many times slower than {}'s: {}; predictions without "
                            "a profile do not know it",
                            what, library, why)});
  };
  add("slow_attention", "attention runs", "cuDNN", attention_fallback());
  if (const std::string why = attention_second_choice(); slow.empty() && !why.empty())
    slow.push_back({"slow_attention",
                    "attention runs by another plan than cuDNN advises first, which may be slow: " + why});
  add("slow_gemms", "GEMMs run", "cuBLASLt", gemm_fallback());
  return slow;
}

void add_running_options(CLI::App& app, RunningOptions& o) {
  app.add_option("plan", o.plan, "plan file of: sextant plan -o")->type_name("FILE");
  add_comm_option(app, o);
  add_rank_options(app, o);
  add_text(app,
           {.flag = "--gemms",
            .metavar = "fast|proposed|exact",
            .text = "GEMMs and attention: of libraries (on a GPU the fastest by the clock, or what "
                    "the library "
                    "proposes first), or by sums of one order, which give the same "
                    "bits in every run; on CPU ranks also on every machine with any number of threads. Three "
                    "times as long on a CPU, more on a GPU"},
           o.gemms);
  add_text(
      app,
      {.flag = "--cuda-graphs",
       .metavar = "auto|on|off",
       .text =
           "on a GPU: what is the same in every step is captured once and then replayed, but in steps whose "
           "operations are timed; auto: the first other steps are taken both ways, and the faster one stays"},
      o.cuda_graphs);
  add_number(app,
             {.flag = "--seed",
              .metavar = "N",
              .text = "of weights and synthetic tokens",
              .min = 0,
              .max = 2147483647},
             o.seed);
}

Runnable::Runnable(const RunningOptions& options, const std::string& profile,
                   const std::filesystem::path& presets)
    : Runnable(options, reading_as(FileUse::plan, options.plan, [&] { return load_plan_file(options.plan); }),
               profile, presets) {}

Runnable::Runnable(const RunningOptions& options, PlanFile file, const std::string& profile,
                   const std::filesystem::path& presets)
    : options_(options), file_(std::move(file)), topology_(file_.cluster) {
  if (on_gpu()) require_gpu(options_);
  if (const auto problems = runtime_refuses(file_.model, file_.training, file_.plan, file_.stack, kernels());
      !problems.empty()) {
    auto named = problems;
    for (Problem& p : named) p.file = options.plan;
    throw ConfigError(named);
  }
  if (options.comm == "mpi" && !mpi_available())
    throw ConfigError(Problem{"--comm", "", "mpi", "local", "this sextant was built without MPI"});
  graph_ = lower(file_.model, file_.training, plan_links(topology_, file_.plan), file_.plan, file_.stack);

  // It may be of another device than the plan's: what runs is what is here.
  if (!profile.empty()) profile_ = GivenProfile{profile, load_profile(profile, presets)};
  const MachineCosts costs(file_.cluster, file_.stack, {}, profile_ ? &*profile_ : nullptr, presets);
  costs_ = price(graph_, costs.best());
  const StackSpec& stack = costs.analytic().stack();
  const Job job{file_.model, file_.training, file_.cluster, topology_, stack, costs.best()};
  const PlanMemory memory = plan_memory(job, file_.plan);
  account_ = memory.peak - outside_of(stack.memory, file_.plan.world());
  if (const auto rejection = too_large(job, memory)) misfit_ = rejection->text;
  std::vector<bool> needed(graph_.works.size(), false);
  for (const Op& op : graph_.ops) needed[op.work] = true;
  for (std::size_t w = 0; w < needed.size(); ++w) {
    works_needed_ += needed[w];
    works_measured_ += needed[w] && costs_[w].source == CostSource::measured;
  }
  predicted_ = simulate(graph_, costs_, with_interference(stack.kernels));
  predicted_.graph_hash = graph_hash(graph_);
  if (profile_) predicted_from_ = cost_shares(breakdown(graph_, predicted_), costs_);
}

const KernelTable& Runnable::kernels() const {
  if (on_gpu()) return *cuda_kernels(options_.gemms == "exact" ? KernelSet::reference : KernelSet::fast);
  return options_.gemms == "exact" ? cpu_reference_kernels() : cpu_kernels();
}

void Runnable::require_room() const {
  require_memory(options_.plan, file_, graph_, ranks_here(file_.plan.world(), options_), on_gpu());
}

TrainingRun Runnable::training() const {
  TrainingRun run{.graph = graph_,
                  .stack = file_.stack,
                  .kernels = kernels(),
                  .sequences = synthetic_sequences(file_.model.vocab_size, file_.training.global_batch,
                                                   static_cast<std::uint64_t>(options_.seed)),
                  .weights = random_weights(file_.model, static_cast<std::uint64_t>(options_.seed))};
  run.processes = options_.processes();
  if (options_.comm == "env") run.tcp = launched_world();
  const int here = run.processes ? 1 : file_.plan.world();
  require_room();
  run.cuda = gpu_of(options_);
  if (on_gpu()) run.replay = static_cast<Replay>(place_among(kReplayNames, options_.cuda_graphs));
  // Threads of two ranks on one core wait for each other in every GEMM.
  const int beside = run.processes ? local_ranks(file_.plan.world(), file_.plan.world()) : here;
  run.threads = options_.threads > 0 ? options_.threads : std::max(1, inspect_machine().cpu_threads / beside);
  if (options_.shaped) run.shape = shape_of(file_.cluster);
  run.device.host_link = file_.cluster.device.host_link;
  for (const OpCost& cost : costs_) run.expected.push_back(cost.duration);
  return run;
}

}  // namespace sextant
