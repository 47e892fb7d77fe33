// How good are predicted collectives on published tables? Every row of a collectives.csv whose hardware is stated is
// predicted by the model of training steps (cost_models/collective.hpp), alone on a nccl-tests baseline; errors are reported per
// source and device for large messages (64 MiB and more) and for the rest. Nothing is fitted here.
//
// Set aside, and counted: rows whose own 5th and 95th percentile lie further apart than 0.87 to 1.15 of their middle, and
// rows that another row of the same hardware and message contradicts by more than 15 %: no model can be near them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/graph/work.hpp"
#include "planner/validation/nccl_baseline.hpp"

namespace sextant {

enum class CollectiveRowUse : std::uint8_t { scored, unstated, spread, contradicted };

struct CollectiveRow {
  int line = 0;
  std::string source;
  CollectiveKind kind = CollectiveKind::all_reduce;
  double bytes = 0;  // as nccl-tests counts them
  TestedHardware on;
  double time_s = 0;       // measured
  double predicted_s = 0;  // alone; 0 when not predicted
  double in_step_s = 0;    // as a training step prices it: with what ranks wait for each other there, over
                           // the network of whole runs; 0 when not predicted
  CollectiveRowUse use = CollectiveRowUse::scored;
};

// Reads, judges and predicts, with a calibration's settings in the place of the presets. Throws ConfigError naming file, line and column of what cannot be read.
std::vector<CollectiveRow> predict_collectives(const std::filesystem::path& csv,
                                               const std::filesystem::path& preset_dir,
                                               std::span<const Setting> settings = {});

inline constexpr double kLargeMessage = 64.0 * (1 << 20);

struct CollectiveScore {
  std::string source, gpu;
  int ranks_low = 0, ranks_high = 0;
  // [0]: messages of 64 MiB and more; [1]: smaller ones
  int rows[2] = {0, 0};
  double mape[2] = {0, 0};          // percent
  double worst[2] = {0, 0};         // signed, percent
  double in_step_mape[2] = {0, 0};  // of in_step_s
  int inside[2] = {0, 0};           // within 5 and 15 %
  int set_aside = 0;
};
// By source and device, and the sum of all as the last element.
std::vector<CollectiveScore> score_collectives(std::span<const CollectiveRow>);

}  // namespace sextant
