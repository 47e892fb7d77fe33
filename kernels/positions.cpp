#include "kernels/positions.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include <fmt/format.h>

namespace sextant {

namespace {

// Pair at which a wave turns `rotations` times within the sequence of the first training, as a fraction of pairs.
double pair_of(double rotations, const ModelSpec& m) {
  return m.head_dim *
         std::log(m.rope_scaling->original_max_positions / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(m.rope_theta));
}

void slow_as_yarn(const ModelSpec& m, std::vector<double>& frequency) {
  const RopeScaling& s = *m.rope_scaling;
  const double low = std::max(0.0, std::floor(pair_of(s.beta_fast, m)));
  double high = std::min(m.head_dim - 1.0, std::ceil(pair_of(s.beta_slow, m)));
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequency.size(); ++i) {
    const double slowed = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequency[i] = frequency[i] / s.factor * slowed + frequency[i] * (1.0 - slowed);
  }
}

}  // namespace

double rope_magnitude(const ModelSpec& model) {
  if (!model.rope_scaling) return 1;
  const RopeScaling& s = *model.rope_scaling;
  if (s.type != "yarn" && s.type != "longrope") return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  if (s.type == "yarn") return 0.1 * std::log(s.factor) + 1.0;
  return s.factor <= 1 ? 1 : std::sqrt(1.0 + std::log(s.factor) / std::log(s.original_max_positions));
}

std::vector<double> rope_frequencies(const ModelSpec& model, std::int64_t positions) {
  const int half = model.head_dim / 2;
  std::vector<double> frequency(static_cast<std::size_t>(half));
  double theta = model.rope_theta;
  if (model.rope_scaling && model.rope_scaling->type == "dynamic") {
    const double longer = static_cast<double>(positions) / model.max_positions,
                 factor = model.rope_scaling->factor;
    if (longer > 1)
      theta *= std::pow(factor * longer - (factor - 1),
                        static_cast<double>(model.head_dim) / (model.head_dim - 2));
  }
  for (int i = 0; i < half; ++i)
    frequency[static_cast<std::size_t>(i)] = std::pow(theta, -2.0 * i / model.head_dim);
  if (!model.rope_scaling) return frequency;

  const RopeScaling& s = *model.rope_scaling;
  if (s.type == "linear") {
    for (double& f : frequency) f /= s.factor;
    return frequency;
  }
  if (s.type == "dynamic") return frequency;
  if (s.type == "longrope") {
    const std::vector<double>& factors =
        positions > s.original_max_positions ? s.long_factor : s.short_factor;
    if (factors.size() != frequency.size())
      throw ConfigError(Problem{{},
                                "rope_scaling.long_factor",
                                fmt::format("{} numbers", factors.size()),
                                fmt::format("{}, and as many of short_factor", half),
                                "longrope is planned without its tables, not run"});
    for (std::size_t i = 0; i < frequency.size(); ++i) frequency[i] /= factors[i];
    return frequency;
  }
  if (s.type == "yarn") {
    slow_as_yarn(model, frequency);
    return frequency;
  }
  if (s.type != "llama3")
    throw ConfigError(
        Problem{{}, "rope_scaling.rope_type", s.type, "llama3, linear, dynamic, yarn or longrope", {}});
  // Llama 3.1: long waves are slowed by `factor`, short ones kept, a linear blend between.
  const double longest = s.original_max_positions / s.low_freq_factor;
  const double shortest = s.original_max_positions / s.high_freq_factor;
  for (double& f : frequency) {
    const double wavelength = 2.0 * std::numbers::pi / f;
    if (wavelength < shortest) continue;
    if (wavelength > longest) {
      f /= s.factor;
      continue;
    }
    const double blend = (s.original_max_positions / wavelength - s.low_freq_factor) /
                         (s.high_freq_factor - s.low_freq_factor);
    f = (1.0 - blend) * f / s.factor + blend * f;
  }
  return frequency;
}

std::vector<double> alibi_slopes(int heads) {
  int power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  const auto of_power = [](int i, int n) { return std::exp2(-8.0 * (i + 1) / n); };
  for (int i = 0; i < power; ++i) slopes.push_back(of_power(i, power));
  for (int i = 0; static_cast<int>(slopes.size()) < heads; i += 2) slopes.push_back(of_power(i, 2 * power));
  return slopes;
}

SlopeTable::SlopeTable(const ModelSpec& model, int first, int count, Dtype accumulator)
    : dtype_(accumulator) {
  if (model.position != PositionKind::alibi) return;
  const std::vector<double> all = alibi_slopes(model.n_heads);
  SEXTANT_CHECK(first >= 0 && first + count <= model.n_heads, "slopes of heads that the model has");
  storage_.resize(static_cast<std::size_t>(count));
  count_ = count;
  for (int i = 0; i < count; ++i) {
    const double slope = all[static_cast<std::size_t>(first + i)];
    if (dtype_ == Dtype::fp64)
      view().row<double>()[i] = slope;
    else
      view().row<float>()[i] = static_cast<float>(slope);
  }
}

TensorView SlopeTable::view() const {
  if (count_ == 0) return {};
  return {const_cast<double*>(storage_.data()), dtype_, 1, count_};
}

RopeTable::RopeTable(const ModelSpec& model, std::int64_t positions, Dtype accumulator)
    : storage_(static_cast<std::size_t>(2 * positions * (model.head_dim / 2))),
      positions_(positions),
      half_(model.head_dim / 2),
      dtype_(accumulator) {
  const std::vector<double> frequency = rope_frequencies(model, positions);
  const double magnitude = rope_magnitude(model);
  for (std::int64_t p = 0; p < positions; ++p)
    for (std::int64_t i = 0; i < half_; ++i) {
      const double angle = static_cast<double>(p) * frequency[static_cast<std::size_t>(i)];
      if (dtype_ == Dtype::fp64) {
        cos().row<double>(p)[i] = magnitude * std::cos(angle);
        sin().row<double>(p)[i] = magnitude * std::sin(angle);
      } else {
        cos().row<float>(p)[i] = static_cast<float>(magnitude * std::cos(angle));
        sin().row<float>(p)[i] = static_cast<float>(magnitude * std::sin(angle));
      }
    }
}

TensorView RopeTable::view(int which) const {
  auto* memory = const_cast<double*>(storage_.data());
  void* start = dtype_ == Dtype::fp64
                    ? static_cast<void*>(memory + which * positions_ * half_)
                    : static_cast<void*>(reinterpret_cast<float*>(memory) + which * positions_ * half_);
  return {start, dtype_, positions_, half_};
}

std::vector<std::int32_t> context_positions(int seq_len, int cp, int rank) {
  SEXTANT_CHECK(cp >= 1 && rank >= 0 && rank < cp && (cp == 1 || seq_len % (2 * cp) == 0),
                fmt::format("sequence of {} cannot be cut for rank {} of cp {}", seq_len, rank, cp));
  std::vector<std::int32_t> positions;
  const int chunks = cp == 1 ? 1 : 2 * cp, length = seq_len / chunks;
  const auto append = [&](int chunk) {
    for (int i = 0; i < length; ++i) positions.push_back(chunk * length + i);
  };
  append(rank);
  if (cp > 1) append(chunks - 1 - rank);
  return positions;
}

std::vector<std::int32_t> gathered_positions(int seq_len, int cp) {
  std::vector<std::int32_t> all;
  for (int rank = 0; rank < cp; ++rank)
    for (std::int32_t p : context_positions(seq_len, cp, rank)) all.push_back(p);
  return all;
}

}  // namespace sextant
