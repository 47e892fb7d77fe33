// System: the whole runtime on a GPU that the ranks of a layout share. Expectation: loss, gradient norm and weights
// of every step as on CPU ranks under the same layout, whose own expectation is an independent float64 reference
// (tests/reference/layouts_test.cpp). Numbers: 1e-10 in fp64, 2e-4 in fp32. In bf16 Adam turns roundings of either side
// into steps of other signs, so both are held to fp64: the GPU's weights may be 1.5 times as far from it as the CPU's, which
// rounds where a library does that is held to it.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

#include "tests/cuda/gpu_ranks.hpp"
#include "tests/cuda/library_roundings.hpp"
#include "tests/cuda/twin.hpp"
#include "tests/reference/lattice.hpp"
#include "tests/support/runnable.hpp"

namespace sextant::testing {
namespace {

ModelSpec small_model() {
  ModelSpec m;
  m.name = "small";
  m.n_layers = 8;
  m.hidden = 64;
  m.n_heads = m.n_kv_heads = 4;
  m.head_dim = 16;
  m.ffn_hidden = 96;
  m.vocab_size = 203;
  m.max_positions = 64;
  return m;
}

struct Trained {
  Executor::Programs programs;
  std::vector<StepReport> steps;
  WholeTensors weights, first_weights;  // in the end and, where asked for, after the first step
};

// What a model has beside LLaMA's: a window, ALiBi in place of rotations, documents that are kept apart, a normalized head.
struct Beside {
  int window = 0;
  bool alibi = false, documents = false, normalized = false;
  auto operator<=>(const Beside&) const = default;
};

struct How {
  bool gpu = false, reference = true, nccl = false;  // nccl: a GPU for each rank
  bool rounds_as_library = false;                    // of the CPU
  Dtype dtype = Dtype::fp64;
  int steps = 4, hidden = 64;
  Replay replay = Replay::off;
  double rate = 5e-3;
  Beside beside = {};
  bool read_first = false;
};

// Every 11th token and those of two more places begin a document.
SequenceSource in_documents(SequenceSource source) {
  return [source = std::move(source)](std::int64_t step, int sequence, std::span<std::int32_t> out) {
    source(step, sequence, out);
    for (std::size_t p = 1; p < out.size(); ++p)
      if ((p + static_cast<std::size_t>(sequence)) % 11 == 0 || p == 3 || p == 20) out[p] = ~out[p];
  };
}

Trained train_small(const std::string& key, const How& how) {
  ModelSpec model = small_model();
  model.hidden = how.hidden;
  model.head_dim = how.hidden / model.n_heads;
  model.window = how.beside.window;
  model.normalized_head = how.beside.normalized;
  if (how.beside.alibi) model.position = PositionKind::alibi;
  const TrainingSpec training = runnable_training(lattice_batch(parse_plan_key(key).dp), how.dtype);
  Ranks cpu;
  if (how.rounds_as_library) cpu.kernels = &kernels_that_round_as_libraries();
  const Ranks ranks = !how.gpu   ? cpu
                      : how.nccl ? ranks_of_gpus(how.reference)
                                 : ranks_of_a_gpu(how.reference);
  const ExecutionGraph graph = graph_to_run(key, model, training, *ranks.kernels);
  WholeRun whole{.graph = graph,
                 .stack = own_stack(),
                 .sequences = synthetic_sequences(model.vocab_size, training.global_batch, 5),
                 .weights = random_weights(model, 7),
                 .steps = how.steps,
                 .ranks = ranks,
                 .read = {StateField::master},
                 .read_first = how.read_first};
  whole.optimizer = {.rate = how.rate, .warmup_steps = 2, .total_steps = 20};
  whole.options.executor.replay = how.replay;
  if (how.beside.documents) {
    whole.options.documents_apart = true;
    whole.sequences = in_documents(std::move(whole.sequences));
  }
  WholeState ended = run_whole(whole);
  return {ended.programs, std::move(ended.steps), std::move(ended.state.at(StateField::master)),
          std::move(ended.first[StateField::master])};
}

// What it was after its first step.
Trained first_of(const Trained& of) {
  if (of.steps.size() == 1) return of;
  return {of.programs, {of.steps.front()}, of.first_weights, {}};
}

// The worst relative difference of losses, norms and weights, with its name.
std::pair<double, std::string> furthest(const Trained& got, const Trained& expected) {
  std::pair<double, std::string> worst;
  const auto take = [&](double distance, const std::string& what) {
    worst = std::max(worst, std::pair(distance, what));
  };
  EXPECT_EQ(got.steps.size(), expected.steps.size());
  for (std::size_t s = 0; s < expected.steps.size(); ++s) {
    const StepReport &x = got.steps.at(s), &y = expected.steps[s];
    take(relative_distance(std::vector{x.loss}, std::vector{y.loss}), "loss of step " + std::to_string(s));
    take(relative_distance(std::vector{x.gradient_norm}, std::vector{y.gradient_norm}),
         "norm of step " + std::to_string(s));
  }
  for (const auto& [name, values] : expected.weights)
    take(relative_distance(got.weights.at(name), values), name);
  return worst;
}

void expect_alike(const Trained& got, const Trained& expected, double bound, const std::string& what) {
  const auto [distance, where] = furthest(got, expected);
  EXPECT_LE(distance, bound) << what << ": " << where;
}

// What of a training in bf16 is further from the same in fp64 than another's roundings explain; empty when nothing is.
std::string too_far(const Trained& got, const Trained& truth, const Trained& rounded, double factor = 1.5) {
  std::string found;
  if (std::abs(got.steps[0].gradient_norm / truth.steps[0].gradient_norm - 1) > 1e-2) found += "first norm ";
  for (std::size_t s = 0; s < truth.steps.size(); ++s)
    if (std::abs(got.steps[s].loss / truth.steps[s].loss - 1) > 1e-2) found += "loss ";
  for (const auto& [name, values] : truth.weights)
    if (relative_distance(got.weights.at(name), values) >
        factor * relative_distance(rounded.weights.at(name), values) + 2e-3)
      found += name + " ";
  return found;
}

// The same, held to the CPU.
std::string too_far(const Trained& got, const std::string& key, const How& how) {
  static std::map<std::pair<std::string, int>, std::pair<Trained, Trained>> known;
  const auto [at, is_new] = known.try_emplace({key, how.hidden});
  if (is_new)
    at->second = {train_small(key, {.hidden = how.hidden}),
                  train_small(key, {.dtype = Dtype::bf16, .hidden = how.hidden})};
  return too_far(got, at->second.first, at->second.second);
}

// By the libraries: held to a CPU that rounds where their attention does (library_roundings.hpp). Adam's first step is a sign:
// a gradient smaller than its rounding steps the wrong way, and the distance goes with the root of the rounding, which is held
// to twice that CPU's (roundings_test.cpp): 1.5 times its distance, with what the sample of some dozen such elements leaves.
// In later steps gradients differ as weights have come apart, whatever the rounding: 3 times.
std::string library_too_far(const std::string& key, How how, Trained* trained = nullptr) {
  struct Known {
    Trained truth, rounded;
  };
  static std::map<std::tuple<std::string, int, int, Beside>, Known> known;
  how.read_first = true;
  const auto [at, is_new] = known.try_emplace({key, how.hidden, how.steps, how.beside});
  const auto& [truth, rounded] = at->second;
  if (is_new) {
    How cpu{.steps = how.steps, .hidden = how.hidden, .beside = how.beside, .read_first = true};
    at->second.truth = train_small(key, cpu);
    cpu.rounds_as_library = true;
    cpu.dtype = Dtype::bf16;
    at->second.rounded = train_small(key, cpu);
  }
  const Trained got = train_small(key, how);
  if (trained) *trained = got;
  std::string found;
  const auto hold = [&](std::size_t steps, const std::string& far) {
    if (!far.empty()) found += "after " + std::to_string(steps) + " steps: " + far;
  };
  hold(1, too_far(first_of(got), first_of(truth), first_of(rounded), 1.5));
  hold(got.steps.size(), too_far(got, truth, rounded, 3));
  return found;
}

class CudaTraining : public GpuTest {};

TEST_F(CudaTraining, OneRankInEveryFormat) {
  for (const bool reference : {true, false}) {
    const std::string what = reference ? " by tiles" : " by libraries";
    const auto compare = [&](Dtype dtype, double bound) {
      expect_alike(train_small("mbs4", {.gpu = true, .reference = reference, .dtype = dtype}),
                   train_small("mbs4", {.dtype = dtype}), bound, std::string(name(dtype)) + what);
    };
    compare(Dtype::fp64, 1e-10);
    compare(Dtype::fp32, 2e-4);
    const How how{.gpu = true, .reference = reference, .dtype = Dtype::bf16};
    if (reference) {
      EXPECT_EQ(too_far(train_small("mbs4", how), "mbs4", how), "") << what;
    } else {
      EXPECT_EQ(library_too_far("mbs4", how), "") << what;
      How wrong = how;
      wrong.rate *= 0.7;
      const std::string seen = library_too_far("mbs4", wrong);
      EXPECT_NE(seen.find("after 1 steps"), std::string::npos) << "control: " << seen;
      EXPECT_NE(seen.find("after 4 steps"), std::string::npos) << "control: " << seen;
    }
  }
}

TEST_F(CudaTraining, HeadsThatTheLibraryServes) {
  How how{.gpu = true, .reference = false, .dtype = Dtype::bf16, .hidden = 256};
  EXPECT_EQ(library_too_far("mbs4", how), "");
  how.rate *= 0.7;  // control
  EXPECT_NE(library_too_far("mbs4", how), "");
}

// A window and distances in the library's graphs, under a normalized head.
TEST_F(CudaTraining, MasksThatTheLibraryServes) {
  How how{.gpu = true, .reference = false, .dtype = Dtype::bf16, .steps = 2, .hidden = 128};
  how.beside = {.window = 10, .alibi = true, .normalized = true};
  EXPECT_EQ(library_too_far("mbs4", how), "");
  how.rate *= 0.7;  // control
  EXPECT_NE(library_too_far("mbs4", how), "");
}

TEST_F(CudaTraining, MasksUnderLayoutsOfEveryKind) {
  How gpu{.gpu = true, .steps = 2}, cpu{.steps = 2};
  for (const Beside& beside :
       {Beside{.window = 5, .documents = true, .normalized = true},
        Beside{.window = 7, .alibi = true, .normalized = true}, Beside{.documents = true}}) {
    gpu.beside = cpu.beside = beside;
    const std::string widest = "tp2.sp.cp2.mbs1.dp2.z3";
    for (const std::string key : {"mbs4", "mbs2.sel", "tp2.sp.mbs2", "cp2.mbs2", "pp2.mbs1", widest.c_str()})
      if (key == widest || !left_out())
        expect_alike(train_small(key, gpu), train_small(key, cpu), 1e-10, key);
  }
  // Controls: each of them left out.
  cpu.beside = {.window = 5, .alibi = true, .documents = true, .normalized = true};
  const Trained all = train_small("cp2.mbs2", cpu);
  for (const Beside& beside : {Beside{.alibi = true, .documents = true, .normalized = true},
                               Beside{.window = 5, .documents = true, .normalized = true},
                               Beside{.window = 5, .alibi = true, .normalized = true},
                               Beside{.window = 5, .alibi = true, .documents = true}}) {
    gpu.beside = beside;
    EXPECT_GT(furthest(train_small("cp2.mbs2", gpu), all).first, 1e-6);
  }
}

// Linear layers in fp8. Its roundings are so coarse that two roundings of one sum part ways at once; so the GPU's are held to
// fp64 beside the CPU's twin, which rounds operands to the same codes (fp8_test.cpp).
std::string fp8_too_far(const Trained& got, const Trained& truth, const Trained& twin) {
  std::string found;
  if (std::abs(got.steps[0].loss / twin.steps[0].loss - 1) > 2e-3) found += "first loss ";
  if (std::abs(got.steps[0].gradient_norm / twin.steps[0].gradient_norm - 1) > 3e-2) found += "first norm ";
  for (std::size_t s = 0; s < truth.steps.size(); ++s)
    if (std::abs(got.steps[s].loss / truth.steps[s].loss - 1) > 2e-2) found += "loss ";
  for (const auto& [name, values] : truth.weights)
    if (relative_distance(got.weights.at(name), values) >
        1.5 * relative_distance(twin.weights.at(name), values) + 4e-3)
      found += name + " ";
  return found;
}

TEST_F(CudaTraining, LinearLayersInFp8) {
  for (const int hidden : {64, 256})
    for (const bool reference : {true, false}) {
      if (left_out()) continue;
      const Trained truth = train_small("mbs4", {.hidden = hidden}),
                    twin = train_small("mbs4", {.dtype = Dtype::fp8, .hidden = hidden});
      How how{.gpu = true, .reference = reference, .dtype = Dtype::fp8, .hidden = hidden};
      for (const char* key : {"mbs4", "mbs4.sel", "mbs4.full"}) {
        if (std::string(key) != "mbs4" && (hidden == 256 || left_out())) continue;
        EXPECT_EQ(fp8_too_far(train_small(key, how), truth, twin), "") << key << reference << hidden;
      }
      how.rate *= 0.7;  // control
      EXPECT_NE(fp8_too_far(train_small("mbs4", how), truth, twin), "") << reference << hidden;
    }
}

// As many ranks as there are GPUs.
TEST_F(CudaTraining, UnderNccl) {
  std::string why;
  if (nccl_version(why).empty()) GTEST_SKIP() << why;
  const auto gpus = static_cast<int>(cuda_gpus(why).size());
  if (gpus < 2) GTEST_SKIP() << "NCCL between ranks needs two GPUs, here is " << gpus;
  for (const char* key : {"mbs4", "dp2.z1.mbs1.b4K", "dp4.z3.mbs1", "tp2.sp.mbs2", "cp2.mbs2", "pp2.vp2.mbs1",
                          "tp2.sp.pp2.vp2.mbs1.dp2.z1.b4K.full1", "dp2.z1.mbs1.b4K.sw2-1"})
    if (parse_plan_key(key).world() <= gpus && !left_out())
      expect_alike(train_small(key, {.gpu = true, .nccl = true}), train_small(key, {}), 1e-10, key);
}

TEST_F(CudaTraining, NcclGivesBackWhatOneRankHas) {
  std::string why;
  if (nccl_version(why).empty()) GTEST_SKIP() << why;
  const auto world = connect_nccl(std::move(make_local_world(1).front()), 0);
  const std::array<int, 1> members = {0};
  const auto group = world->group(members);
  const Twin in(Dtype::fp32, 1, 129);
  const std::array<std::int64_t, 1> counts = {129}, bytes = {std::int64_t{129} * 4};
  const auto enqueue = [](const std::function<void(NativeStream)>& call) {
    test_gpu()->launch(test_stream(), call);
    synchronize_gpu();
  };
  const auto expect_same = [&](const char* what, auto call) {
    const Twin out = Twin::poisoned(Dtype::fp32, 1, 129);
    enqueue([&](NativeStream s) { call(in.on(true).data, out.on(true).data, s); });
    EXPECT_EQ(to_doubles(out.downloaded().view()), to_doubles(in.downloaded().view())) << what;
  };
  expect_same("all_reduce", [&](const void* x, void* y, NativeStream s) {
    group->all_reduce(x, y, 129, Dtype::fp32, Reduction::sum, s);
  });
  expect_same("reduce_scatter", [&](const void* x, void* y, NativeStream s) {
    group->reduce_scatter(x, y, counts, Dtype::fp32, Reduction::sum, s);
  });
  expect_same("all_gather",
              [&](const void* x, void* y, NativeStream s) { group->all_gather(x, y, bytes, s); });
  enqueue([&](NativeStream s) {
    group->abort("the test ends it");
    EXPECT_THROW(group->barrier(s), Aborted);
  });
}

TEST_F(CudaTraining, LayoutsOfEveryKind) {
  for (const char* key : kLattice)
    if (!left_out()) expect_alike(train_small(key, {.gpu = true}), train_small(key, {}), 1e-10, key);
  for (const char* key : {"dp2.z1.mbs1.ga5-3", "tp2.sp.dp2.z0.mbs1.ga2-6", "pp2.dp2.z1.mbs1.ga7-1",
                          "dp4.z1.mbs1.b4K.sw4-4-4-1", "dp2.z3.mbs1.oo50.sw2-1"})
    if (!left_out()) expect_alike(train_small(key, {.gpu = true}), train_small(key, {}), 1e-10, key);
  How how{.gpu = true};
  how.rate *= 1 + 1e-7;
  EXPECT_GT(furthest(train_small("mbs8", how), train_small("mbs8", {})).first, 1e-10) << "control";
}

// The product's own format and kernels, one layout of each kind: held to one rank of the same, which is held to the CPU above.
TEST_F(CudaTraining, LayoutsByTheLibraries) {
  How how{.gpu = true, .reference = false, .dtype = Dtype::bf16, .steps = 2, .hidden = 256};
  const Trained truth = train_small("mbs4", {.steps = how.steps, .hidden = how.hidden}),
                one_rank = train_small("mbs4", how);
  for (const char* key :
       {"mbs2.po", "tp2.sp.mbs2", "cp2.mbs2", "tp2.sp.cp2.mbs1.dp2.z1", "pp2.mbs1", "pp2.vp2.mbs1",
        "pp2.mbs1.zb", "dp4.z1.mbs1.b4K", "dp2.z2.mbs1.b4K", "dp4.z3.mbs1", "dp4.z1.mbs1.sd2.b4K", "mbs2.sel",
        "mbs2.full", "mbs2.oo50", "mbs2.ao3", "dp2.z3.mbs1.po.oo60"})
    EXPECT_EQ(left_out() ? "" : too_far(train_small(key, how), truth, one_rank), "") << key;
  // Controls: each weight a fifth too long; a rate that is a tenth off under a layout.
  Trained wrong = one_rank;
  for (const auto& [name, values] : one_rank.weights) {
    for (double& x : wrong.weights.at(name)) x *= 1.2;
    EXPECT_EQ(too_far(wrong, truth, one_rank), name + " ");
    wrong.weights.at(name) = values;
  }
  how.rate *= 0.9;
  EXPECT_NE(too_far(train_small("mbs4.sel", how), truth, one_rank), "");
}

TEST_F(CudaTraining, RepeatsInEveryBit) {
  How how{.gpu = true, .reference = true, .dtype = Dtype::bf16};
  const auto expect_same = [](const Trained& first, const Trained& second, const std::string& what) {
    EXPECT_EQ(first.weights, second.weights) << what;
    for (std::size_t s = 0; s < first.steps.size(); ++s) {
      EXPECT_EQ(first.steps[s].loss, second.steps[s].loss) << what;
      EXPECT_EQ(first.steps[s].gradient_norm, second.steps[s].gradient_norm) << what;
    }
  };
  for (const char* key : {"mbs2", "dp2.z1.mbs1.b4K", "tp2.sp.mbs2", "cp2.mbs2", "pp2.mbs1.zb.dp2.z2.b4K",
                          "dp2.z3.mbs1.po.oo60"})
    expect_same(train_small(key, how), train_small(key, how), key);
  const Trained first = train_small("mbs2", how);
  how.rate *= 1.01;
  EXPECT_NE(train_small("mbs2", how).weights, first.weights) << "control";
}

// Captured graphs in place of launches: the same kernels on the same memory.
TEST_F(CudaTraining, GraphsGiveTheSameBits) {
  const auto compare = [](const char* key, bool reference) {
    // Heads of 64 on the library's side; its dq is summed in no fixed order.
    const How how{.gpu = true, .reference = reference, .dtype = Dtype::bf16, .hidden = reference ? 64 : 256};
    How replay = how;
    replay.replay = Replay::on;
    Trained replayed;
    if (reference) {
      replayed = train_small(key, replay);
      EXPECT_EQ(train_small(key, how).weights, replayed.weights) << key;
    } else {
      EXPECT_EQ(library_too_far(key, replay, &replayed), "") << key;
    }
    EXPECT_GT(replayed.programs.replayed, 0) << key;
    EXPECT_EQ(replayed.programs.refused, 0) << key << ": the device would not capture";
  };
  for (const char* key :
       {"mbs2", "dp2.z1.mbs1.b4K", "tp2.sp.mbs2", "pp2.mbs1", "mbs1.full2", "dp2.z1.mbs1.ga5-3"})
    compare(key, true);
  compare("mbs4", false);
}

// Offload moves where a part is updated, not what comes of it.
TEST_F(CudaTraining, TheHostUpdatesToTheSameBits) {
  const How how{.gpu = true, .dtype = Dtype::bf16};
  EXPECT_EQ(train_small("mbs2.oo50", how).weights, train_small("mbs2", how).weights);
}

}  // namespace
}  // namespace sextant::testing
