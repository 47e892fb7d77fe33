// Which options does a run have that goes on? Those that shape it are kept in its folder, options.json, when it begins;
// what is not given on --resume is what was kept. Not kept are those of one start alone: --comm, --cuda-graphs, --profile,
// --record, --trace, --time-limit-s, --stop-file, --no-save.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "runtime/checkpoint/manifest.hpp"
#include "tools/inputs/run_checkpoints.hpp"
#include "tools/inputs/run_data.hpp"
#include "tools/inputs/running.hpp"

namespace sextant {

struct RunVerbOptions {
  RunningOptions running;
  DataOptions data;
  std::string profile, output, trace, init;
  int steps = 10, warmup = 0, max_skipped = 5, print_every = 1;
  double rate = 3e-4, final_ratio = 0.1, weight_decay = 0.1, clip = 1.0, deadline_s = 60;
  bool record = false;
  CheckpointFlags checkpoints;
};

// Which options of GPUs CPU ranks were given, which do nothing there; empty without any.
std::string unused_fields(const RunVerbOptions&);

inline constexpr const char* kRunOptionsSchema = "sextant.run_options/1";
inline constexpr const char* kRunOptionsFile = "options.json";

// The text of that file. `init_dtype`: of the weights that the run started from; empty when they have several, or when it
// started from none.
std::string run_options_text(const RunVerbOptions&, const std::string& init_dtype);
// Of the run of this checkpoint, or else as its folder says; empty when neither does.
std::string kept_init_dtype(const std::filesystem::path& run, const Manifest&);

// Lines for people, those that have nothing to say empty.
struct AdoptedOptions {
  std::string as_before;  // what is not its default
  std::string changed;    // what is given otherwise than before
  std::string not_kept;   // what the folder does not know, with the defaults that it gets
  std::string problem;    // why they are not those of options.json
  std::string former;     // what of the options is written as version 0.1 wrote it
  std::string init_dtype;
};
// Gives `o` what was not given. `from`: the checkpoint that the run goes on from, whose own options are those of a run
// whose options.json is not there or not as it was written, and of one that goes back to it (--resume-step). Null: the run has
// none yet. Throws ConfigError when options.json is of no use and there is no checkpoint either.
AdoptedOptions adopt_options(const CLI::App&, const Manifest* from, RunVerbOptions& o);

}  // namespace sextant
