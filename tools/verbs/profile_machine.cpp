#include "tools/verbs/profile_machine.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include <fmt/format.h>
#include <unistd.h>

#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "profiler/gpu_monitor.hpp"
#include "profiler/kernel_trace.hpp"
#include "profiler/machine_sweep.hpp"
#include "tools/inputs/launch_environment.hpp"
#include "tools/inputs/machine.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;

void describe_gpu(MachineFacts& facts, int ordinal) {
  std::string why;
  const auto gpus = cuda_gpus(why);
  const CudaGpu& gpu = gpus.at(static_cast<std::size_t>(ordinal));
  facts.device = gpu.name;
  facts.compute_capability = fmt::format("{}.{}", gpu.major, gpu.minor);
  facts.multiprocessors = gpu.multiprocessors;
  facts.memory_GiB = gib(gpu.memory);
  facts.level2_MiB = static_cast<double>(gpu.level2.v) / (1 << 20);
  const CudaLibraries libraries = cuda_libraries();
  for (const std::string& name :
       {libraries.gemm, libraries.attention, nccl_version(why), kernel_trace_library()})
    if (!name.empty()) facts.libraries.push_back(name);
}

void describe_cpu(MachineFacts& facts) {
  const HostMachine machine = inspect_machine();
  facts.device = machine.cpu;
  facts.multiprocessors = machine.cpu_threads;
  facts.memory_GiB = gib(machine.memory);
  facts.libraries = {cpu_gemm_library()};
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

std::string machine_of(const RunningOptions& options) {
  if (std::string why; options.device == "cuda")
    if (const auto gpus = cuda_gpus(why); !gpus.empty())
      return fmt::format("{}, {}, {}", gpus.front().name, cuda_libraries().gemm, cuda_libraries().attention);
  const HostMachine machine = inspect_machine();
  return fmt::format("{}, {} threads", machine.cpu, machine.cpu_threads);
}

struct MachineWatch::State {
  std::optional<GpuMonitor> gpu;
  Clock::time_point start = Clock::now();
  std::string missing;
  Bytes used_before;
};

MachineWatch::MachineWatch(const RunningOptions& options) : state_(std::make_unique<State>()) {
  const std::optional<CudaDeviceOptions> gpu = gpu_of(options);
  if (!gpu) {
    describe_cpu(facts_);
    return;
  }
  describe_gpu(facts_, gpu->ordinal);
  state_->gpu.emplace(gpu->ordinal);
  state_->gpu->describe(facts_);
  state_->missing = state_->gpu->missing();
  state_->used_before = state_->gpu->memory_used();
}
MachineWatch::~MachineWatch() = default;

std::optional<MachineCondition> MachineWatch::condition(const std::string& at) const {
  if (!state_->gpu || !state_->missing.empty()) return std::nullopt;
  MachineCondition condition = state_->gpu->now(at);
  condition.time_s = std::chrono::duration<double>(Clock::now() - state_->start).count();
  return condition;
}

void MachineWatch::note(const std::string& at) {
  if (auto now = condition(at)) facts_.conditions.push_back(std::move(*now));
}

const std::string& MachineWatch::missing() const { return state_->missing; }

Bytes MachineWatch::taken() const {
  return state_->gpu && state_->used_before.v > 0 ? state_->gpu->memory_used() - state_->used_before
                                                  : Bytes();
}

MeasuredBy measure_machine(const RunningOptions& options, int ranks, bool quick, MachineWatch& watch,
                           const std::function<void(const std::string& part)>& progress) {
  const bool processes = options.processes();
  const std::optional<CudaDeviceOptions> gpu = gpu_of(options);
  std::vector<std::unique_ptr<Communicator>> world;
  if (processes)
    world.push_back(options.comm == "env" ? make_tcp_world(launched_world()) : make_mpi_world());
  else
    world = make_local_world(ranks);
  const MeasuredBy by{world.front()->rank() == 0, world.front()->size()};
  if (gpu && processes)
    world.front() = connect_nccl(std::move(world.front()), gpu->ordinal);
  else if (gpu)
    share_cuda_device(world, gpu->ordinal);

  SweepOptions sweep = quick ? quick_sweep() : gpu ? sweep_of_gpu() : SweepOptions{};
  sweep.node = host_name();
  sweep.one_device = gpu && !processes;
  sweep.threads =
      options.threads > 0 ? options.threads : std::max(1, inspect_machine().cpu_threads / by.ranks);
  sweep.before_part = [&](const std::string& part) {  // on rank 0
    watch.note("before " + part);
    if (progress) progress(part);
  };
  const auto measure = [&](Communicator& rank) {
    CpuDeviceOptions cpu;
    cpu.on_error = [&](const std::string& what) { rank.abort(what); };
    const auto device = gpu ? make_cuda_device(*gpu) : make_cpu_device(cpu);
    auto measured = sweep_machine(*device, gpu ? *cuda_kernels() : cpu_kernels(), rank, sweep);
    if (rank.rank() == 0 || processes) watch.facts().measurements = std::move(measured);
  };
  if (processes)
    measure(*world.front());
  else
    run_ranks(world, measure);
  return by;
}

}  // namespace sextant
