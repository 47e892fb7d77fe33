#include "tools/verbs/profile_ladder.hpp"

#include <span>

#include "core/base/preset_path.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/model/model_files.hpp"
#include "planner/calibration/profile_priors.hpp"

namespace sextant {
namespace {

constexpr int kLayers = 2;

struct GridField {
  const char* model;
  int seq_len, micro_batch;
};
// Widths of 1 to 13 billion parameters, short and long sequences, small and large micro-batches.
constexpr GridField kOfGpu[] = {
    {"llama-3.2-1b", 2048, 1}, {"llama-3.2-1b", 2048, 4}, {"llama-3.2-3b", 2048, 2}, {"llama-2-7b", 2048, 1},
    {"llama-2-7b", 4096, 2},   {"llama-3-8b", 8192, 1},   {"llama-2-13b", 4096, 1}};
constexpr GridField kOfCpu[] = {{"stories-260k", 128, 8}, {"stories-15m", 256, 2}, {"stories-42m", 256, 1}};

// The first preset that is this GPU; the form of a name is not always told by the driver, the shapes are the same.
DeviceSpec device_of(const std::string& gpu, const std::filesystem::path& presets) {
  WorkProfile named;
  named.machine = gpu;
  for (const std::string& name : preset_names(presets, "devices"))
    if (DeviceSpec device = load_device(name, presets); taken_on(named, device)) return device;
  return load_device("a100-80gb", presets);
}

}  // namespace

std::vector<PlanFile> profile_ladder(const std::string& gpu, bool quick,
                                     const std::filesystem::path& presets) {
  PlanFile file;
  file.cluster = load_cluster("laptop", presets);
  if (!gpu.empty()) file.cluster.device = device_of(gpu, presets);
  file.cluster.node.gpus = 1;
  file.stack = load_stack("sextant", presets);
  file.training.stack = file.stack.name;
  std::vector<PlanFile> ladder;
  for (const GridField& grid_value :
       gpu.empty() || quick ? std::span<const GridField>(kOfCpu) : std::span<const GridField>(kOfGpu)) {
    file.model = load_model(grid_value.model, presets);
    file.model.n_layers = kLayers;
    file.training.seq_len = grid_value.seq_len;
    file.training.global_batch = 2 * grid_value.micro_batch;
    file.plan.micro_batch = grid_value.micro_batch;
    ladder.push_back(file);
  }
  if (quick) ladder.resize(1);
  return ladder;
}

}  // namespace sextant
