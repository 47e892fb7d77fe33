#include "tools/export/launch.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "tools/export/bash_text.hpp"

namespace sextant {

NodeShare node_share(const PlanFile& file) {
  const int world = file.plan.world(), per_node = std::max(1, file.cluster.node.gpus);
  NodeShare share;
  share.gpus = std::min(world, per_node);
  share.nodes = (world + share.gpus - 1) / share.gpus;
  share.last = world - (share.nodes - 1) * share.gpus;
  return share;
}

namespace {

constexpr const char* kHead =
    "#!/usr/bin/env bash\nset -euo pipefail\ncd \"$(dirname \"${BASH_SOURCE[0]}\")\"\n";

std::string setup_lines(const ExportContent& content) {
  std::string text = "source ./environment.sh\n";
  for (const std::string& line : content.setup) text += line + "\n";
  return text;
}

std::string ranks_comment(const PlanFile& file, const NodeShare& share) {
  const AxisOrder& o = file.plan.axis_order;
  return fmt::format("# Rank r is GPU r % {} of node r / {}; axes innermost first: {}-{}-{}-{}.\n",
                     share.gpus, share.gpus, name(o[0]), name(o[1]), name(o[2]), name(o[3]));
}

// In a container only where the launcher does not start it there itself (pyxis).
std::string docker(const LaunchOptions& options) {
  if (options.container.empty() || options.launcher != "torchrun") return "";
  return fmt::format(
      "docker run --rm --gpus all --network host --ipc host --ulimit memlock=-1 -v \"$PWD:$PWD\" -w \"$PWD\" "
      "\\\n"
      "  -e NODE_RANK -e MASTER_ADDR -e MASTER_PORT -e MEGATRON_LM -e IN_CONTAINER=1 {} bash launch.sh",
      bash_word(options.container));
}

ExportFile torchrun_script(const PlanFile& file, const ExportContent& content, const LaunchOptions& options) {
  const NodeShare share = node_share(file);
  std::string text = kHead;
  text += ranks_comment(file, share);
  if (share.nodes > 1) {
    text += fmt::format(
        "# On every node: NODE_RANK=0..{} MASTER_ADDR=<first node> bash launch.sh. Node ranks follow the "
        "network: neighbours "
        "are close.\n",
        share.nodes - 1);
    text +=
        "export NODE_RANK=\"${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK}}\" MASTER_ADDR=\"${MASTER_ADDR:?set "
        "MASTER_ADDR}\"\n";
  } else {
    text += "export NODE_RANK=0 MASTER_ADDR=\"${MASTER_ADDR:-localhost}\"\n";
  }
  text += "export MASTER_PORT=\"${MASTER_PORT:-29500}\"\n";
  if (const std::string start = docker(options); !start.empty())
    text += "if [[ -z ${IN_CONTAINER:-} ]]; then exec " + start + "; fi\n";
  text += setup_lines(content);
  if (!content.starter.empty())
    return {"launch.sh", text + "exec " + content.starter + " \\\n  " + content.program + " \"$@\"\n", true};
  text += fmt::format("GPUS={}\n", share.gpus);
  if (share.last != share.gpus)
    text += fmt::format("if (( NODE_RANK == {} )); then GPUS={}; fi  # what is left for the last node\n",
                        share.nodes - 1, share.last);
  text += fmt::format(
      "exec torchrun --nnodes {} --node-rank \"$NODE_RANK\" --nproc-per-node \"$GPUS\" \\\n"
      "  --master-addr \"$MASTER_ADDR\" --master-port \"$MASTER_PORT\" \\\n  {} \"$@\"\n",
      share.nodes, content.program);
  return {"launch.sh", text, true};
}

ExportFile slurm_script(const PlanFile& file, const LaunchOptions& options) {
  const NodeShare share = node_share(file);
  const FabricSpec& fabric = file.cluster.fabric;
  std::string text = "#!/usr/bin/env bash\n#SBATCH --job-name=sextant\n";
  text += fmt::format(
      "#SBATCH --nodes={}\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node={}\n#SBATCH --exclusive\n",
      share.nodes, share.gpus);
  if (fabric.leaf_nodes > 0)  // the plan counts neighbours under one leaf switch
    text += fmt::format("#SBATCH --switches={}\n", (share.nodes + fabric.leaf_nodes - 1) / fabric.leaf_nodes);
  text += ranks_comment(file, share);
  text +=
      "set -euo pipefail\n"
      "cd \"${SLURM_SUBMIT_DIR:-.}\"  # sbatch from this folder\n"
      "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
      "export MASTER_ADDR\n";
  text += "srun --ntasks-per-node=1 --kill-on-bad-exit=1 --export=ALL";
  if (!options.container.empty())
    text += fmt::format(
        " \\\n  --container-image={} --container-mounts=\"$PWD:$PWD\" --container-workdir=\"$PWD\"",
        bash_word(options.container));
  return {"job.sbatch", text + " \\\n  bash launch.sh \"$@\"\n", true};
}

// One process per rank, started by MPI, with the variables that torch.distributed reads.
ExportFile mpi_rank_script(const ExportContent& content) {
  return {"rank.sh",
          std::string(kHead) +
              "export RANK=\"$OMPI_COMM_WORLD_RANK\" WORLD_SIZE=\"$OMPI_COMM_WORLD_SIZE\"\n"
              "export LOCAL_RANK=\"$OMPI_COMM_WORLD_LOCAL_RANK\" "
              "LOCAL_WORLD_SIZE=\"$OMPI_COMM_WORLD_LOCAL_SIZE\"\n" +
              setup_lines(content) + "exec " +
              (content.mpi_program.empty() ? "python -u " + content.program : content.mpi_program) +
              " \"$@\"\n",
          true};
}

ExportFile mpirun_script(const PlanFile& file) {
  const NodeShare share = node_share(file);
  std::string text = std::string(kHead) + ranks_comment(file, share);
  text +=
      "# HOSTFILE: one node a line, neighbours in the network beside each other; needs Open MPI.\n"
      "export MASTER_ADDR=\"${MASTER_ADDR:-$(awk 'NR == 1 { print $1 }' \"${HOSTFILE:-/dev/null}\")}\"\n"
      "export MASTER_ADDR=\"${MASTER_ADDR:-localhost}\" MASTER_PORT=\"${MASTER_PORT:-29500}\"\n";
  text += fmt::format(
      "exec mpirun -np {} --map-by ppr:{}:node --bind-to none ${{HOSTFILE:+--hostfile \"$HOSTFILE\"}} \\\n"
      "  -x MASTER_ADDR -x MASTER_PORT -x PATH bash \"$PWD/rank.sh\" \"$@\"\n",
      file.plan.world(), share.gpus);
  return {"launch.sh", text, true};
}

}  // namespace

std::vector<ExportFile> launch_files(const PlanFile& file, const ExportContent& content,
                                     const LaunchOptions& options) {
  std::string environment;
  for (const auto& [variable, value] : content.environment)
    environment += fmt::format("export {}={}\n", variable, bash_word(value));
  std::vector<ExportFile> files = {
      {"environment.sh", "# Variables that the framework requires for this plan.\n" + environment, false}};
  if (options.launcher == "mpirun") {
    if (!content.starter.empty())
      throw ConfigError(Problem{"--launch", "", "mpirun", "torchrun or slurm",
                                "this target's own launcher sets what its ranks read"});
    files.push_back(mpirun_script(file));
    files.push_back(mpi_rank_script(content));
  } else {
    files.push_back(torchrun_script(file, content, options));
    if (options.launcher == "slurm") files.push_back(slurm_script(file, options));
  }
  if (!content.trial.empty())
    files.push_back({"trial.sh",
                     std::string(kHead) + "# The cheapest trial of this job: " + content.trial_needs + ".\n" +
                         setup_lines(content) + content.trial + "\n",
                     true});
  return files;
}

std::string launch_command(const PlanFile& file, const LaunchOptions& options) {
  const int nodes = node_share(file).nodes;
  if (options.launcher == "slurm") return "sbatch job.sbatch";
  if (options.launcher == "mpirun") return nodes > 1 ? "HOSTFILE=hosts bash launch.sh" : "bash launch.sh";
  return nodes > 1
             ? "NODE_RANK=<0.." + std::to_string(nodes - 1) + "> MASTER_ADDR=<first node> bash launch.sh"
             : "bash launch.sh";
}

ExportFile export_readme(const PlanFile& file, const ChosenTarget& chosen, const ExportContent& content,
                         const LaunchOptions& options) {
  const NodeShare share = node_share(file);
  const PlanPrediction& predicted = file.prediction;
  std::string text = fmt::format("# {} {}: {}\n", chosen.target->title, chosen.version, plan_key(file.plan));
  text += fmt::format("- Model {}; {} sequences of {} tokens a step on {} x {} ({} node{}).\n",
                      file.model.name, file.training.global_batch, file.training.seq_len, file.plan.world(),
                      file.cluster.device.name, share.nodes, share.nodes == 1 ? "" : "s");
  text += fmt::format(
      "- Predicted as {}: {:.3f} s a step ({:.3f} to {:.3f}), {:.0f} tokens/s/GPU, {:.1f} GiB on the fullest "
      "GPU.\n",
      file.stack.name, predicted.step_time_s.value, predicted.step_time_s.lower, predicted.step_time_s.upper,
      predicted.tokens_per_s_per_gpu, predicted.peak_memory_GiB.value);
  text += fmt::format("- Needs: {}{}.\n", content.needs,
                      options.container.empty() ? "" : ", in " + options.container);
  text += fmt::format("- Start, from this folder: `{}`\n", launch_command(file, options));
  if (!content.trial.empty())
    text += fmt::format("- Cheapest trial ({}): `bash trial.sh`\n", content.trial_needs);
  if (!content.checker.empty())
    text += content.own_parser
                ? "- `python check.py` has the framework's own parser read these files and compares with "
                  "plan.json.\n"
                : "- `python check.py` holds these files against the framework's documents and compares with "
                  "plan.json.\n";
  for (const std::string& note : content.notes) text += "- Note: " + note + ".\n";
  return {"README.md",
          text + "- plan.json is the plan: `sextant simulate plan.json`, `sextant explain plan.json`.\n",
          false};
}

}  // namespace sextant
