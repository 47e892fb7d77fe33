#include "planner/calibration/log_parameters.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

// "(0, 1): 3278500864", behind "model parallel rank".
void read_rank(std::string_view line, int at, RunLog& log) {
  constexpr std::string_view kRank = "number of parameters on (tensor, pipeline) model parallel rank";
  const std::size_t label = line.find(kRank);
  if (label == std::string_view::npos) return;
  line.remove_prefix(label + kRank.size());
  const std::size_t comma = std::min(line.find(','), line.size());
  const auto tensor = count_after(line.substr(0, comma), "("), pipeline = count_after(line, ", ");
  const auto count = number_after(line, "):");
  if (tensor && pipeline && count) log.rank_parameters[{*tensor, *pipeline}] = {*count, 0, at};
}

// Of all ranks together; nothing where some are missing.
std::optional<LoggedParameters> sum_of_ranks(const RunLog& log, const ParallelPlan& plan) {
  LoggedParameters sum;
  for (int tensor = 0; tensor < plan.tp; ++tensor)
    for (int pipeline = 0; pipeline < plan.pp; ++pipeline) {
      const auto one = log.rank_parameters.find({tensor, pipeline});
      if (one == log.rank_parameters.end()) return std::nullopt;
      sum.count += one->second.count;
      sum.line = one->second.line;
    }
  return sum;
}

// "8030261248" as "8.030 billion".
std::string billions(double count) { return fmt::format("{:.4g} billion", 1e-9 * count); }

}  // namespace

void read_parameters(std::string_view line, int at, RunLog& log) {
  std::optional<double> count;
  double within = 0;
  switch (log.format) {
    case LogFormat::torchtitan:
      if (line.find("total parameters") != std::string_view::npos) count = number_after(line, "size:");
      break;
    case LogFormat::nanotron:
      count = number_after(line, "Total number of parameters:");
      within = 0.005 * count.value_or(0);  // of three digits the last
      break;
    case LogFormat::megatron_lm:
    case LogFormat::megatron_bridge:
      count = number_after(line, "Total number of parameters in billions:");
      if (count) *count *= 1e9;
      within = 0.005e9;
      read_rank(line, at, log);
      break;
    case LogFormat::deepspeed:
    case LogFormat::nemo:
      break;  // they print none, or one in a table of Lightning's
  }
  if (count && *count > 0) log.parameters = LoggedParameters{*count, within, at};
}

std::optional<Problem> of_another_model(const RunLog& log, const ModelSpec& model, const ParallelPlan& plan) {
  const auto said = log.parameters ? log.parameters : sum_of_ranks(log, plan);
  if (!said) return std::nullopt;
  const ParameterCounts counts = parameter_counts(model);
  const auto row = static_cast<double>(model.hidden);
  const double copies = model.tied_embeddings ? 1 : 2;
  const double body = static_cast<double>(counts.total) - copies * model.vocab_size * row;
  // Rows of a vocabulary are padded to a multiple of 128 for each tensor rank, unless the log says how many there are;
  // ranks that count their own norms count them more than once.
  const auto padded = log.says.find("vocab");
  const double rows = padded == log.says.end() ? model.vocab_size : static_cast<double>(padded->second);
  const double most = padded == log.says.end() ? rows + 128.0 * plan.tp : rows;
  const double norms =
      (plan.tp - 1.0) * static_cast<double>(model.n_layers * counts.norms + counts.final_norm);
  constexpr double kOdd = 1e-3;  // what else a program counts: tables of positions, scales
  const double within = std::max(said->within, kOdd * static_cast<double>(counts.total));
  for (const double matrices : {1.0, 2.0}) {
    const double low = body + matrices * rows * row, high = body + matrices * most * row + norms;
    if (said->count >= low - within && said->count <= high + within) return std::nullopt;
  }
  return Problem{
      fmt::format("{}:{}", log.file, said->line), "parameters", billions(said->count),
      fmt::format("{}, which {} has", billions(static_cast<double>(counts.total)), model.name),
      "neither a padded vocabulary nor tied embeddings make that difference: --model names the model "
      "that was trained, or a file with its shape"};
}

}  // namespace sextant
