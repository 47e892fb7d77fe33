// System: one rank trains twenty steps with clipping, warm-up and cosine. Expectation: loss, gradient norm
// and rate of every step and the final weights as computed elsewhere in float64. Numbers: 1e-10 in fp64, 1e-5
// in fp32; the first step alone must move the weights by more than that.
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/reference/fixtures.hpp"

namespace sextant::testing {
namespace {

constexpr int kSteps = 20, kWarmup = 4;
constexpr double kRate = 5e-3;

double rate_of(int step) {
  if (step < kWarmup) return kRate * (step + 1) / kWarmup;
  return kRate * (0.1 + 0.9 * (1 + std::cos(M_PI * (step - kWarmup) / (kSteps - kWarmup))) / 2);
}

// Master copies and moments of every parameter, updated by the kernels; sharded in two, because a shard must
// not know where it ends.
class Optimizer {
 public:
  Optimizer(const NamedTensors& weights, Dtype dtype) : dtype_(dtype) {
    for (const auto& [name, values] : weights) {
      const auto n = static_cast<std::int64_t>(values.size());
      master_[name] = Matrix(dtype, 1, n, values);
      moments_[name] = {Matrix(dtype, 1, n), Matrix(dtype, 1, n)};
    }
  }

  // Returns the gradient norm before clipping.
  double step(const NamedTensors& gradients, int index) {
    const KernelTable& k = cpu_kernels();
    double squares = 0;
    std::map<std::string, Matrix> g;
    for (const auto& [name, values] : gradients) {
      g[name] = Matrix(dtype_, 1, static_cast<std::int64_t>(values.size()), values);
      k.squared_norm({.x = g[name].view(), .sum = &squares});
    }
    const double norm = std::sqrt(squares);
    const AdamwScalars scalars = scalars_of({.rate = rate_of(index),
                                             .gradient_scale = norm > 1 ? 1 / (norm + 1e-6) : 1.0,
                                             .correction1 = 1 - std::pow(0.9, index + 1),
                                             .correction2 = 1 - std::pow(0.95, index + 1)});
    for (auto& [name, master] : master_) {
      const std::int64_t n = master.view().cols, half = n / 2;
      const ElementRange decayed{0, name.find("norm") == std::string::npos ? n : 0};
      for (const auto& [first, count] : {std::pair(std::int64_t{0}, half), std::pair(half, n - half)}) {
        const auto part = [&, f = first, c = count](const Matrix& x) { return x.view().column_range(f, c); };
        k.adamw({.master = part(master),
                 .moment1 = part(moments_.at(name)[0]),
                 .moment2 = part(moments_.at(name)[1]),
                 .gradient = part(g.at(name)),
                 .parameter = part(master),
                 .decay = {&decayed, 1},
                 .scalars = &scalars});
      }
    }
    return norm;
  }

  NamedTensors weights() const {
    NamedTensors all;
    for (const auto& [name, master] : master_) all[name] = to_doubles(master.view());
    return all;
  }

 private:
  Dtype dtype_;
  std::map<std::string, Matrix> master_;
  std::map<std::string, std::array<Matrix, 2>> moments_;
};

struct Numbers {
  const char* text;
  const KernelTable* kernels;
  Dtype dtype;
  double bound;
};

void PrintTo(const Numbers& numbers, std::ostream* out) { *out << numbers.text; }

class Training : public ::testing::TestWithParam<std::tuple<const char*, Numbers>> {};

TEST_P(Training, TwentySteps) {
  SEXTANT_NEEDS_REFERENCE();
  const auto [name, numbers] = GetParam();
  const double bound = numbers.bound;
  const std::filesystem::path folder = *reference_folder() / name;
  const ModelSpec model = read_hugging_face_config(folder / "config.json");
  const NamedTensors start = read_all(SafetensorsFile(folder / "model.safetensors"));
  const SafetensorsFile expected(folder / "training.safetensors");
  const std::vector<std::int32_t> tokens = read_tokens(expected, "tokens");
  const auto& shape = expected.require("tokens").shape;
  const auto batch = static_cast<int>(shape[1]), seq = static_cast<int>(shape[2]) - 1;
  const std::vector<double> loss = read_doubles(expected, "loss"), norm = read_doubles(expected, "grad_norm"),
                            rate = read_doubles(expected, "lr");

  Optimizer optimizer(start, numbers.dtype);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::int32_t> ids, targets;
    for (int b = 0; b < batch; ++b)
      for (int i = 0; i < seq; ++i) {
        const std::int32_t* row = tokens.data() + (step * batch + b) * (seq + 1);
        ids.push_back(row[i]);
        targets.push_back(row[i + 1]);
      }
    const StepResult got =
        VirtualLlama(model, {.dtype = numbers.dtype, .kernels = numbers.kernels}, optimizer.weights())
            .run(ids, targets, batch);
    const auto s = static_cast<std::size_t>(step);
    EXPECT_LT(std::abs(got.loss / loss[s] - 1), bound) << "loss of step " << step;
    EXPECT_LT(std::abs(optimizer.step(got.gradients, step) / norm[s] - 1), bound) << "norm of step " << step;
    EXPECT_LT(std::abs(rate_of(step) / rate[s] - 1), 1e-14) << "rate of step " << step;
    if (step == 0) {
      for (const auto& [parameter, values] : optimizer.weights())
        EXPECT_GT(relative_distance(values, start.at(parameter)), 10 * bound)
            << parameter << " has not moved";
    }
  }
  double worst = 0;
  for (const auto& [parameter, values] : optimizer.weights()) {
    const double distance = relative_distance(values, read_doubles(expected, "final." + parameter));
    EXPECT_LT(distance, bound) << parameter;
    worst = std::max(worst, distance);
  }
  RecordProperty("worst_final_weight", fmt::format("{:.2e}", worst));
}

std::string case_name(const ::testing::TestParamInfo<Training::ParamType>& param) {
  std::string text = fmt::format("{}_{}", std::get<0>(param.param), std::get<1>(param.param).text);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}
INSTANTIATE_TEST_SUITE_P(
    Reference, Training,
    ::testing::Combine(::testing::ValuesIn(kReferenceCases),
                       ::testing::Values(Numbers{"fp64", &cpu_reference_kernels(), Dtype::fp64, 1e-10},
                                         Numbers{"fp32", &cpu_reference_kernels(), Dtype::fp32, 1e-5})),
    case_name);
INSTANTIATE_TEST_SUITE_P(Fast, Training,
                         ::testing::Combine(::testing::Values("deep"),
                                            ::testing::Values(Numbers{"fp32_fast", &cpu_kernels(),
                                                                      Dtype::fp32, 5e-5})),
                         case_name);

// System: the whole model in fp64. Expectation: the directional derivative along a fixed direction equals the
// gradient's projection on it. Numbers: central difference, relative 1e-6. Needs no fixture.
TEST(FiniteDifferences, WholeModel) {
  ModelSpec model;
  model.n_layers = 2;
  model.hidden = 24;
  model.n_heads = 4;
  model.n_kv_heads = 2;
  model.head_dim = 10;
  model.ffn_hidden = 37;
  model.vocab_size = 29;
  std::uint64_t state = 12345;  // a small generator of its own, so that the numbers are the same everywhere
  const auto uniform = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state >> 11) * 0x1p-53 - 0.5;
  };
  NamedTensors weights;
  const auto parameter = [&](const std::string& name, int rows, int cols, double mean, double spread) {
    for (int i = 0; i < rows * cols; ++i) weights[name + ".weight"].push_back(mean + spread * uniform());
  };
  const int h = model.hidden, d = model.head_dim;
  parameter("model.embed_tokens", model.vocab_size, h, 0, 1);
  parameter("lm_head", model.vocab_size, h, 0, 1);
  parameter("model.norm", 1, h, 1, 0.5);
  for (int layer = 0; layer < model.n_layers; ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    parameter(at + "input_layernorm", 1, h, 1, 0.5);
    parameter(at + "post_attention_layernorm", 1, h, 1, 0.5);
    parameter(at + "self_attn.q_proj", 4 * d, h, 0, 0.8);
    parameter(at + "self_attn.k_proj", 2 * d, h, 0, 0.8);
    parameter(at + "self_attn.v_proj", 2 * d, h, 0, 0.8);
    parameter(at + "self_attn.o_proj", h, 4 * d, 0, 0.8);
    parameter(at + "mlp.gate_proj", model.ffn_hidden, h, 0, 0.8);
    parameter(at + "mlp.up_proj", model.ffn_hidden, h, 0, 0.8);
    parameter(at + "mlp.down_proj", h, model.ffn_hidden, 0, 0.8);
  }
  std::vector<std::int32_t> ids, targets;
  for (int i = 0; i < 2 * 11; ++i) {
    ids.push_back(i * 7 % model.vocab_size);
    targets.push_back(i % 5 == 0 ? kIgnoreTarget : i * 3 % model.vocab_size);
  }
  const StepResult at = VirtualLlama(model, {}, weights).run(ids, targets, 2);
  for (const auto& [name, values] : weights) {
    std::vector<double> direction(values.size());
    double projection = 0, rolled = 0;
    const std::vector<double>& g = at.gradients.at(name);
    for (std::size_t i = 0; i < direction.size(); ++i) direction[i] = uniform();
    for (std::size_t i = 0; i < direction.size(); ++i) {
      projection += direction[i] * g[i];
      rolled += direction[(i + 1) % direction.size()] * g[i];
    }
    const auto loss_at = [&](double step) {
      NamedTensors moved = weights;
      for (std::size_t i = 0; i < direction.size(); ++i) moved[name][i] += step * direction[i];
      return VirtualLlama(model, {}, moved).run(ids, targets, 2).loss;
    };
    const double step = 1e-5, difference = (loss_at(step) - loss_at(-step)) / (2 * step);
    EXPECT_NEAR(difference, projection, 1e-6 * std::abs(projection) + 1e-9) << name;
    EXPECT_GT(std::abs(difference - rolled), 1e-6 * std::abs(projection) + 1e-9) << name << ": control";
  }
}

}  // namespace
}  // namespace sextant::testing
