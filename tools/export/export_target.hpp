// What can a plan be exported to? A target is a framework that trains: it says which fields of a plan it has options for, and
// writes what it is started with. One file per target; this table is what the verb, the tests and the documents go by.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/plan_file.hpp"
#include "core/plan/stack_spec.hpp"
#include "tools/export/target_features.hpp"

namespace sextant {

struct ExportFile {
  std::string name;  // relative to the folder of the export
  std::string text;
  bool executable = false;
};

// What a target writes, before the launch scripts and the README that are the same for all.
struct ExportContent {
  std::vector<ExportFile> files;
  std::vector<std::pair<std::string, std::string>> copied;  // files of presets/exports, and their names here
  std::vector<std::pair<std::string, std::string>> environment;  // variables it requires
  std::vector<std::string> setup;  // lines of bash before the program is started, on every node
  std::string
      starter;  // starts the ranks of one node instead of torchrun: "accelerate launch ..."; empty: torchrun
  std::string program;      // what torchrun starts, in bash: "\"$MEGATRON_LM/pretrain_gpt.py\" ..."
  std::string mpi_program;  // what a rank of mpirun starts, where that is not python with `program`
  std::string needs;        // what must be installed where it runs
  std::string trial;        // the cheapest trial in the framework itself: lines of bash for trial.sh
  std::string trial_needs;  // what the trial needs: "one GPU", "no GPU"
  std::string
      checker;  // the script of presets/exports that has the framework's parser read the files; empty: none
  bool own_parser = true;          // the checker asks the framework, not a list of what its documents allow
  std::vector<std::string> notes;  // what is left to the reader of the files
};

struct ExportTarget {
  std::string name;                   // "megatron-lm"
  std::string title;                  // "Megatron-LM"
  std::vector<std::string> versions;  // the default first
  std::string package;                // of PyPI, whose version `sextant doctor` says; empty: none
  std::string place = {};             // where it is then: "this program"
  std::string stack;                  // the software stack that predicts it
  std::string twin =
      {};  // the same software with other blocks, which the files state: its plans stay its own
  TargetFeatures (*features)(const std::string& version, const StackCapabilities&);
  // Beyond the features: what depends on several fields together.
  std::vector<Inexpressible> (*rules)(const PlanFile&, const std::string& version);
  ExportContent (*write)(const PlanFile&, const std::string& version);
};

const std::vector<ExportTarget>& export_targets();

// "megatron-lm" or "megatron-lm@0.19.2" as a target and one of its versions. Throws ConfigError for --to.
struct ChosenTarget {
  const ExportTarget* target = nullptr;
  std::string version;
};
ChosenTarget find_export_target(const std::string& text);

// Everything about the plan that the target has no option for; empty when it can be exported. `stack` is the target's preset.
std::vector<Inexpressible> inexpressible(const ChosenTarget&, const StackSpec& stack, const PlanFile&);

ExportTarget megatron_lm_target();
ExportTarget torchtitan_target();
ExportTarget nanotron_target();
ExportTarget fsdp2_target();
ExportTarget deepspeed_target();
ExportTarget megatron_bridge_target();
ExportTarget accelerate_target();
ExportTarget accelerate_deepspeed_target();
ExportTarget colossalai_target();
ExportTarget colossalai_gemini_target();
ExportTarget sextant_target();
ExportTarget smp_target();

}  // namespace sextant
