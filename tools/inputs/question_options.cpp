// The options of tools/inputs/inputs.hpp, each described once.
#include "core/model/training_spec.hpp"
#include "tools/inputs/inputs.hpp"
#include "tools/inputs/options.hpp"
#include "tools/inputs/precision.hpp"

namespace sextant {

namespace {

struct TextOption {
  OptionRecord record;
  std::string QuestionOptions::*target;
};
constexpr TextOption kPlan = {{.flag = "--plan",
                               .metavar = "KEY|FILE",
                               .text = "the layout: a plan key such as tp4.pp8.vp5.dp2.z1.mbs1.sel (without "
                                       "dp it fills the cluster), or a plan "
                                       "file of 'sextant plan -o'"},
                              &QuestionOptions::plan};
constexpr TextOption kAlways[] = {
    {{.flag = "--model",
      .metavar = "MODEL",
      .text = "preset name, Hugging Face config.json or checkpoint folder, or Meta params.json"},
     &QuestionOptions::model},
    {{.flag = "--cluster",
      .metavar = "CLUSTER",
      .text =
          "preset name, nodes x GPUs x device (8x8xh100, with @FABRIC to name the network), or JSON file"},
     &QuestionOptions::cluster},
    {{.flag = "--stack",
      .metavar = "STACK",
      .text = "software stack: preset name or JSON file (default: megatron-core)"},
     &QuestionOptions::stack},
    {{.flag = "--calibration",
      .metavar = "FILE",
      .text = "constants of your machines, written by 'sextant calibrate -o FILE'"},
     &QuestionOptions::calibration},
};

constexpr TextOption kPrecision = {{.flag = "--precision",
                                    .metavar = kPrecisions,
                                    .text = "number formats: bf16 with fp32 moments (usual), bf16 "
                                            "throughout, or GEMMs in fp8; all with an fp32 master copy",
                                    .otherwise = precision_otherwise},
                                   &QuestionOptions::precision};

constexpr TextOption kProfile = {
    {.flag = "--profile",
     .metavar = "FILE",
     .text =
         "measured operation times of the cluster's device, of 'sextant profile -o FILE' or shipped (sextant "
         "presets profiles): they, and times interpolated between them, replace predicted ones"},
    &QuestionOptions::profile};

constexpr TextOption kFrom = {
    {.flag = "--from",
     .metavar = "FILE",
     .text = "what you run today: Megatron-LM script, settings of torchtitan, DeepSpeed, "
             "nanotron, accelerate or Megatron-Bridge. Its model, batch, formats, layout and "
             "stack hold where no option states another"},
    &QuestionOptions::from};

struct CountOption {
  OptionRecord record;
  int QuestionOptions::*target;
};
constexpr CountOption kCounts[] = {
    {{.flag = "--seq-len",
      .metavar = "N",
      .text = "tokens of one sequence (default: 4096, or the model's longest when that is less)",
      .unit = "tokens",
      .min = 1,
      .max = kMaxSeqLen},
     &QuestionOptions::seq_len},
    {{.flag = "--global-batch",
      .metavar = "N",
      .text = "sequences of one optimizer step (default: 1024)",
      .unit = "sequences",
      .min = 1,
      .max = kMaxGlobalBatch},
     &QuestionOptions::global_batch},
};

struct ListOption {
  OptionRecord record;
  std::vector<std::string> QuestionOptions::*target;
};
constexpr ListOption kSet = {
    {.flag = "--set",
     .metavar = "KEY=VALUE",
     .text = "override a field of the cluster (fabric.bandwidth_GBps=100, defects[0].node=3), or of model., "
             "training. or stack. (training.gradient=bf16); repeatable"},
    &QuestionOptions::set};
constexpr ListOption kLimits[] = {
    {{.flag = "--fix", .metavar = "FIELD=VALUE,...", .text = "pin fields of the layout: tp=4,pp=2"},
     &QuestionOptions::fix},
    {{.flag = "--limit",
      .metavar = "LIMIT,...",
      .text = "narrow fields of the layout: 'tp<=8,mbs<=4,rec!=full'"},
     &QuestionOptions::limit},
};

}  // namespace

void add_question_options(CLI::App& app, QuestionOptions& o, QuestionKinds kinds) {
  if (kinds.plan) add_text(app, kPlan.record, o.*kPlan.target);
  for (const auto& option : kAlways) add_text(app, option.record, o.*option.target);
  if (kinds.from) add_text(app, kFrom.record, o.*kFrom.target);
  add_text(app, kPrecision.record, o.*kPrecision.target);
  if (kinds.profile) add_text(app, kProfile.record, o.*kProfile.target);
  for (const auto& option : kCounts) {
    add_number(app, option.record, o.*option.target);
    app.get_option(option.record.flag)->default_str("");  // 0 only says "not given"
  }
  add_list(app, kSet.record, o.*kSet.target);
  if (!kinds.limits) return;
  for (const auto& option : kLimits) add_list(app, option.record, o.*option.target);
}

}  // namespace sextant
