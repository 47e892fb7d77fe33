// A command line that starts training: the launcher (torchrun, srun, deepspeed, mpirun, accelerate), the program, its options.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/import/shell_script.hpp"

namespace sextant {

struct CommandFlags {
  std::string program;  // "pretrain_gpt.py", or a module; empty where only options stand
  std::map<std::string, std::vector<std::string>>
      options;              // "--seq-length" to its values; the last of each counts
  std::optional<int> gpus;  // that the launcher starts
  bool has(const std::string& name) const { return options.contains(name); }
  int count() const { return static_cast<int>(options.size()); }
};

// `slurm`: words of #SBATCH lines, for what the launcher leaves to Slurm.
CommandFlags command_flags(const std::vector<std::string>& words, const std::vector<std::string>& slurm);

// The command of the script with the most options; where no command has any, the array or variable that holds the most.
CommandFlags training_command(const ShellScript&);

}  // namespace sextant
