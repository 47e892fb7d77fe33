// `sextant doctor`: what this machine has and what is missing, with the command that mends it.
#include <algorithm>
#include <ostream>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/preset_path.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/make_device.hpp"
#include "tools/export/export_target.hpp"
#include "tools/export/python_packages.hpp"
#include "tools/inputs/machine.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/preset_files.hpp"
#include "tools/inputs/version.hpp"
#include "tools/terminal/table.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

// ok: as it should be. absent: an optional part is not there. problem: planning cannot work without it.
enum class Status { ok, absent, problem };
constexpr std::array<const char*, 3> kStatusNames = {"ok", "absent", "problem"};

struct Check {
  std::string name;
  Status status = Status::ok;
  std::string found, advice;
};

// Whether training on this machine's GPU could begin. Its libraries are looked for only where there is one: they are
// large.
Check gpu_backend(const HostMachine& machine) {
  if (!cuda_kernels())
    return {
        "GPU backend", Status::absent, "not in this build",
        "install the CUDA toolkit (nvcc, cuBLAS, cuDNN) and configure again; training then runs on the CPU"};
  std::string why;
  const bool driver = !machine.gpus.empty() || !machine.gpu_driver.empty();
  const auto gpus = driver ? cuda_gpus(why) : std::vector<CudaGpu>();
  if (gpus.empty() && !why.empty())
    return {"GPU backend", Status::absent, why, "training then runs on the CPU"};
  if (gpus.empty()) return {"GPU backend", Status::ok, "built in; no GPU to run on", ""};
  if (!gpus.front().refused.empty())
    return {"GPU backend", Status::absent, gpus.front().refused, "training then runs on the CPU"};
  const CudaLibraries libraries = cuda_libraries();
  if (!libraries.missing.empty())
    return {"GPU backend", Status::absent, "cuBLASLt was not found", libraries.missing};
  const std::string nccl = nccl_version(why);
  return {"GPU backend", Status::ok,
          fmt::format(
              "{}, {}, {}", libraries.gemm,
              libraries.attention.empty() ? "attention by own tiles, which are slow" : libraries.attention,
              nccl.empty() ? "no NCCL (one GPU at a time)" : nccl),
          libraries.attention.empty() ? "install cuDNN for fast attention" : ""};
}

std::vector<Check> checks_of(const HostMachine& machine, Session& session) {
  std::vector<Check> checks;
  checks.push_back({"processor", Status::ok,
                    fmt::format("{}, {} thread{}", machine.cpu.empty() ? "unknown" : machine.cpu,
                                machine.cpu_threads, machine.cpu_threads == 1 ? "" : "s"),
                    ""});
  const bool vector = std::find(machine.isa.begin(), machine.isa.end(), "avx2") != machine.isa.end();
  checks.push_back({"vector units", vector ? Status::ok : Status::absent,
                    machine.isa.empty() ? "none known" : fmt::format("{}", fmt::join(machine.isa, " ")),
                    vector ? "" : "training on this CPU will be slow; planning is not affected"});
  const bool roomy = gib(machine.memory) >= 1.0;
  checks.push_back({"memory", roomy ? Status::ok : Status::problem,
                    fmt::format("{:.1f} GiB", gib(machine.memory)),
                    roomy ? "" : "the largest searches need up to 1 GiB"});
  if (!machine.gpus.empty()) {
    const auto& gpu = machine.gpus.front();
    checks.push_back({"GPU", Status::ok,
                      fmt::format("{} x {}, {:.1f} GiB", machine.gpus.size(), gpu.name, gib(gpu.memory)),
                      ""});
  } else {
    checks.push_back({"GPU", Status::absent,
                      machine.gpu_driver.empty() ? "no NVIDIA driver" : "NVIDIA driver, but no usable GPU",
                      machine.gpu_driver.empty() ? "planning needs none; training then runs on the CPU"
                                                 : "see nvidia-smi; planning needs none"});
  }
  checks.push_back(gpu_backend(machine));
  const bool launcher = !machine.mpi_launcher.empty();
  checks.push_back({"MPI launcher", launcher ? Status::ok : Status::absent,
                    launcher ? machine.mpi_launcher : "none of srun, mpirun, mpiexec",
                    launcher ? "" : "for training over several processes: apt-get install openmpi-bin"});
  checks.push_back(
      {"ranks", Status::ok,
       fmt::format("--comm local, env{}", mpi_available() ? ", mpi" : "; built without MPI"),
       "local on one machine; mpi for CPU ranks on several; env where there is no MPI; on GPUs NCCL "
       "carries what either starts (docs/running.md: Several processes)"});
  try {
    const auto presets = session.presets();
    std::size_t files = 0;
    for (const auto kind : kPresetKinds) files += preset_names(presets, kind).size();
    checks.push_back({"presets", files > 0 ? Status::ok : Status::problem,
                      fmt::format("{} in {}", files, presets.string()),
                      files > 0 ? "" : "name their folder with --presets DIR"});
  } catch (const ConfigError& error) {
    checks.push_back({"presets", Status::problem, "not found", error.problems().front().hint});
  }
  const bool writable = access(".", W_OK) == 0;
  checks.push_back({"working folder", writable ? Status::ok : Status::absent,
                    writable ? "writable" : "not writable",
                    writable ? "" : "write files elsewhere: -o /path/of/FILE"});
  return checks;
}

// The frameworks of sextant export: what the python has that --check asks. The runtime is this program; what is on no PyPI cannot
// be asked for.
struct FoundTarget {
  const ExportTarget* target = nullptr;
  std::string version;  // installed; empty: none
};
bool is_runtime(const ExportTarget& target) { return target.stack == "sextant"; }
// "0.1.0" of "sextant 0.1.0 (GNU 12.2.0, Release)".
std::string own_version() {
  std::istringstream words(version_text());
  std::string name, version;
  words >> name >> version;
  return version;
}
struct FoundTargets {
  PythonPackages python;
  std::vector<FoundTarget> targets;
};

FoundTargets find_targets() {
  std::vector<std::string> packages;
  for (const ExportTarget& t : export_targets())
    if (!t.package.empty()) packages.push_back(t.package);
  FoundTargets found{python_packages(packages), {}};
  for (const ExportTarget& t : export_targets()) {
    const auto at = found.python.versions.find(t.package);
    const std::string version = at == found.python.versions.end() ? "" : at->second;
    found.targets.push_back({&t, is_runtime(t) ? own_version() : version});
  }
  return found;
}

std::string target_table(Session& session, const FoundTargets& found) {
  Table table({{"export target", Align::left},
               {"package", Align::left},
               {"installed", Align::left},
               {"tested with", Align::left}});
  for (const auto& [target, version] : found.targets)
    table.add_row({target->name, target->package.empty() ? target->place : target->package,
                   !version.empty()          ? version
                   : target->package.empty() ? "not asked"
                                             : "no",
                   fmt::format("{}", fmt::join(target->versions, ", "))});
  return table.render(session.terminal, session.common.wide);
}

std::string python_text(const PythonPackages& python) {
  if (python.program.empty())
    return fmt::format("there is no {} to ask; SEXTANT_PYTHON names another", python_asked());
  return fmt::format("asked {} (Python {}); SEXTANT_PYTHON names another, tests/exports has what to install",
                     python.program, python.version);
}

Json to_json(const FoundTargets& found) {
  Json list = Json::array();
  for (const auto& [target, version] : found.targets)
    list.push_back({{"name", target->name},
                    {"package", target->package},
                    {"installed", version},
                    {"tested", target->versions}});
  return {{"python", found.python.program}, {"python_version", found.python.version}, {"targets", list}};
}

Json to_json(const HostMachine& machine, const std::vector<Check>& checks) {
  Json gpus = Json::array(), list = Json::array();
  for (const auto& gpu : machine.gpus) gpus.push_back({{"name", gpu.name}, {"memory_GiB", gib(gpu.memory)}});
  for (const auto& c : checks)
    list.push_back({{"name", c.name},
                    {"status", kStatusNames[static_cast<std::size_t>(c.status)]},
                    {"found", c.found},
                    {"advice", c.advice}});
  return {{"machine",
           {{"cpu", machine.cpu},
            {"cpu_threads", machine.cpu_threads},
            {"isa", machine.isa},
            {"memory_GiB", gib(machine.memory)},
            {"gpu_driver", machine.gpu_driver},
            {"gpus", gpus},
            {"mpi_launcher", machine.mpi_launcher}}},
          {"checks", list}};
}

ExitCode run(Session& session) {
  const HostMachine machine = inspect_machine();
  const auto checks = checks_of(machine, session);
  const FoundTargets targets = find_targets();
  const bool sound =
      std::none_of(checks.begin(), checks.end(), [](const Check& c) { return c.status == Status::problem; });
  if (session.common.json) {
    Json answer = to_json(machine, checks);
    answer["export"] = to_json(targets);
    print_json(session, "doctor", answer);
  } else {
    Table table({{"part", Align::left}, {"status", Align::left}, {"found", Align::left}});
    for (const auto& c : checks)
      table.add_row({c.name, kStatusNames[static_cast<std::size_t>(c.status)], c.found});
    session.terminal.out << table.render(session.terminal, session.common.wide);
    session.terminal.out << '\n';
    for (const auto& c : checks)
      if (!c.advice.empty())
        print_wrapped(session.terminal.out, session.terminal, fmt::format("{}: {}", c.name, c.advice));
    session.terminal.out << '\n' << target_table(session, targets);
    print_wrapped(session.terminal.out, session.terminal, python_text(targets.python));
    session.terminal.out << (sound ? "\nnext: sextant presets\n" : "");
  }
  return sound ? ExitCode::ok : ExitCode::bad_input;
}

}  // namespace

Verb doctor_verb() {
  return {
      .name = "doctor",
      .summary = "report what this machine has, and how to get what is missing",
      .description =
          "Checks processor, memory, GPU and driver, MPI launcher, kinds of ranks, presets and the working "
          "folder. "
          "'absent' is an optional part that is not there; a 'problem' ends with exit code 3.",
      .examples = {{"this machine", "sextant doctor"}, {"for a bug report", "sextant doctor --json"}},
      .define = [](CLI::App&) -> Run { return [](Session& session) { return run(session); }; }};
}

}  // namespace sextant
