// What does a kernel of a real framework do? Rules by its name, from tools/presets/kernel_names.json: the first that fits. A folder of
// presets of one's own may add rules for kernels of one's own.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/cluster/rank_grid.hpp"
#include "tools/traces/gpu_trace.hpp"

namespace sextant {

class KernelNames {
 public:
  // Throws ConfigError naming file and key.
  explicit KernelNames(const std::filesystem::path& preset_dir);

  KernelClass class_of(std::string_view kernel) const;
  // `said` is the profiler's own word for it ("_allgather_base"), empty where it has none.
  CollectiveName collective_of(std::string_view kernel, std::string_view said) const;
  // Does a range of this name mark a step?
  struct StepWord {
    int word = -1;             // which of the words for it, the surest first; -1: it marks none
    std::int64_t number = -1;  // -1: it has none
  };
  StepWord step_of(std::string_view range) const;
  // The axes that a process group of this description spans, as the framework calls it; empty: no word is known.
  std::vector<Axis> axes_of(std::string_view description) const;

 private:
  struct Rule {
    std::vector<std::string> words;  // one of them in the name, in any case
    int value = 0;
    std::vector<Axis> axes;
  };
  static const Rule* first_fit(const std::vector<Rule>&, std::string_view text);

  std::vector<Rule> kernels_, collectives_, groups_;
  std::vector<std::string> steps_;
};

}  // namespace sextant
