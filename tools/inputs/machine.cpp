#include "tools/inputs/machine.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include <dlfcn.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace sextant {

namespace fs = std::filesystem;

namespace {

// The value of "key : value" lines as /proc writes them.
std::string proc_value(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) {
      const std::size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  return "";
}

std::vector<std::string> known_isa(const std::string& flags) {
  std::istringstream words(flags);
  const std::set<std::string> present{std::istream_iterator<std::string>(words), {}};
  std::vector<std::string> found;
  for (const char* name : {"avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16"})
    if (present.count(name)) found.emplace_back(name);
  return found;
}

int usable_threads() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

Bytes usable_memory() {
  Bytes memory(static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
  std::ifstream file("/sys/fs/cgroup/memory.max");  // "max" when there is no limit
  std::int64_t limit = 0;
  if (file >> limit && limit > 0) memory = std::min(memory, Bytes(limit));
  return memory;
}

// The CUDA driver is asked through its own library, so that this command needs no toolkit. Any failure means
// that no GPU can be used (error 35, "driver too old", is what a machine without GPU answers). It stays loaded: what it
// has begun does not end with it.
std::vector<GpuFound> cuda_devices() {
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!library) return {};
  const auto symbol = [&](const char* name) { return dlsym(library, name); };
  const auto init = reinterpret_cast<int (*)(unsigned)>(symbol("cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(symbol("cuDeviceGetCount"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(symbol("cuDeviceGet"));
  const auto name_of = reinterpret_cast<int (*)(char*, int, int)>(symbol("cuDeviceGetName"));
  const auto memory_of = reinterpret_cast<int (*)(std::size_t*, int)>(symbol("cuDeviceTotalMem_v2"));
  int devices = 0;
  if (!init || !count || !get || !name_of || !memory_of || init(0) != 0 || count(&devices) != 0) return {};
  std::vector<GpuFound> found;
  for (int i = 0; i < devices; ++i) {
    int device = 0;
    std::array<char, 256> text{};
    std::size_t bytes = 0;
    if (get(&device, i) != 0 || name_of(text.data(), static_cast<int>(text.size()) - 1, device) != 0 ||
        memory_of(&bytes, device) != 0)
      continue;
    found.push_back({text.data(), Bytes(static_cast<std::int64_t>(bytes))});
  }
  return found;
}

}  // namespace

std::optional<fs::path> find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
    std::error_code error;
    if (fs::is_regular_file(candidate, error) && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return std::nullopt;
}

HostMachine inspect_machine() {
  HostMachine machine;
  machine.cpu = proc_value("/proc/cpuinfo", "model name");
  machine.cpu_threads = usable_threads();
  machine.isa = known_isa(proc_value("/proc/cpuinfo", "flags"));
  machine.memory = usable_memory();
  if (rlimit limit{}; getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    machine.process_memory = Bytes(static_cast<std::int64_t>(limit.rlim_cur));
  machine.gpu_driver = proc_value("/proc/driver/nvidia/version", "NVRM version");
  machine.gpus = cuda_devices();
  for (const char* launcher : {"srun", "mpirun", "mpiexec"})
    if (const auto found = find_program(launcher)) {
      machine.mpi_launcher = found->string();
      break;
    }
  return machine;
}

}  // namespace sextant
