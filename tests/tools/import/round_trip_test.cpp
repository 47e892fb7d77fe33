// What `sextant export` writes, `--from` reads: the same model, batch, formats and layout, for plans of all shapes.
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "core/cluster/cluster_files.hpp"
#include "core/model/model_files.hpp"
#include "core/plan/plan_key.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/import/imported.hpp"
#include "tools/export/export_folder.hpp"
#include "tools/export/target_features.hpp"

namespace sextant::importing {
namespace {

// Fields that have no effect in this plan as every reader leaves them.
ParallelPlan effective(ParallelPlan p, int layers) {
  if (p.replicas() == 1 && !p.parameter_offload) p.zero_stage = 0;
  if (p.shards() == 1) p.zero_stage = 0;
  if (p.tp == 1) p.sequence_parallel = p.overlap_tp = false;
  if (p.replicas() == 1) p.overlap_grad_reduce = true;
  if (p.replicas() == 1 || p.zero_stage == 0) p.overlap_param_gather = true;
  if (p.zero_stage == 0 || p.shard_degree == p.replicas()) p.shard_degree = 0;
  if (p.recompute.kind != RecomputeKind::full) p.recompute.layers = -1;
  if (equal_chunks(p, layers)) p.chunks.clear();
  for (const AxisOrder& order :
       {AxisOrder{Axis::tp, Axis::cp, Axis::dp, Axis::pp}, AxisOrder{Axis::tp, Axis::cp, Axis::pp, Axis::dp}})
    if (same_order(p, order)) {
      p.axis_order = order;
      break;
    }
  return p;
}

class Drawn {
 public:
  explicit Drawn(unsigned seed) : rng_(seed) {}
  template <class T>
  T one_of(const std::vector<T>& all) {
    return all[rng_() % all.size()];
  }
  std::string key(int gpus) {
    const auto divisor = [&](int most) {
      std::vector<int> all;
      for (const int d : {1, 2, 4, 8})
        if (d <= most && gpus % d == 0) all.push_back(d);
      const int d = one_of(all);
      gpus /= d;
      return d;
    };
    const int tp = divisor(8), pp = divisor(8), cp = divisor(4);
    std::string text = fmt::format("tp{}.pp{}.cp{}.dp{}.mbs{}", tp, pp, cp, gpus, one_of<int>({1, 1, 2, 4}));
    const int zero = one_of<int>({0, 1, 1, 2, 3, 3});
    text += fmt::format(".z{}", zero);
    if (pp > 1 && rng_() % 3 == 0) text += one_of<std::string>({".vp2", ".vp4"});
    if (zero > 0 && rng_() % 4 == 0)
      text += fmt::format(".sd{}", std::max(1, gpus * cp / one_of<int>({1, 2, 4})));
    text += one_of<std::string>({"", ".sel", ".full", ".full2"});
    if (tp > 1) text += one_of<std::string>({"", "", ".nosp", ".tpo"});
    text += one_of<std::string>({"", "", ".nogr.nopg", ".nopg"}) + one_of<std::string>({"", "", ".b20M"});
    text += one_of<std::string>({"", "", "", ".oo100", ".oo100.po", ".oo50", ".ao4", ".ax-tp-cp-pp-dp"});
    if (pp == 4 && rng_() % 3 == 0) text += ".L7-8-9-8";
    return text;
  }

 private:
  std::mt19937 rng_;
};

PlanFile plan_of(const std::string& model, const std::string& cluster, const std::string& stack,
                 const std::string& key, Drawn& drawn) {
  PlanFile file;
  file.model = load_model(model, kPresets);
  file.cluster = load_cluster(cluster, kPresets);
  file.stack = load_stack(stack, kPresets, file.cluster.device.generation);
  file.training.stack = stack;
  file.training.seq_len = drawn.one_of<int>({2048, 4096});
  file.plan = fill_plan_key(key, file.stack, file.cluster.gpus()).plan;
  file.training.global_batch = file.plan.dp * file.plan.micro_batch * drawn.one_of<int>({8, 16});
  if (cluster.find("h100") != cluster.npos && drawn.one_of<int>({0, 1, 2}) == 0)
    file.training.compute = Dtype::fp8;
  if (stack == "megatron-core" && drawn.one_of<int>({0, 1, 2}) == 0)
    file.training.gradient = file.training.reduction = Dtype::bf16;
  return file;
}

struct Shapes {
  int read = 0, interleaved = 0, uneven = 0, sharded = 0, hybrid = 0, recomputed = 0, offloaded = 0,
      formats = 0;
  void count(const PlanFile& file) {
    const ParallelPlan& p = file.plan;
    ++read;
    interleaved += p.vp > 1;
    uneven += !p.chunks.empty();
    sharded += p.zero_stage > 1;
    hybrid += p.zero_stage > 0 && p.shards() < p.replicas();
    recomputed += p.recompute.kind != RecomputeKind::none;
    offloaded += p.optimizer_offload > 0 || p.activation_offload > 0;
    formats += file.training.compute == Dtype::fp8 || file.training.gradient == Dtype::bf16;
  }
};

void expect_same(const PlanFile& written, const Question& read, const std::string& what) {
  const int layers = written.model.n_layers;
  EXPECT_EQ(plan_key(effective(*read.plan, layers)), plan_key(effective(written.plan, layers))) << what;
  ModelSpec model = read.model, own = written.model;
  model.name = own.name;                        // two presets may have one shape
  model.max_positions = own.max_positions = 0;  // at least the sequence
  EXPECT_EQ(nlohmann::json(model), nlohmann::json(own)) << what;
  EXPECT_EQ(nlohmann::json(read.training), nlohmann::json(written.training)) << what;
  EXPECT_EQ(read.stack.name, written.stack.name) << what;
}

Shapes make_trips(const std::string& target, unsigned seed, int trips) {
  const ChosenTarget chosen = find_export_target(target);
  Drawn drawn(seed);
  Shapes shapes;
  for (int tried = 0; tried < 4000 && shapes.read < trips; ++tried) {
    const auto [cluster, gpus] = drawn.one_of<std::pair<std::string, int>>(
        {{"1x8xh100", 8}, {"2x8xa100-80gb", 16}, {"4x8xh100", 32}, {"16x8xh100", 128}});
    const std::string key = drawn.key(gpus);
    PlanFile file;
    try {
      file =
          plan_of(drawn.one_of<std::string>({"llama-3.1-8b", "llama-3.1-70b", "llama-2-7b", "llama-3.2-1b"}),
                  cluster, chosen.target->stack, key, drawn);
    } catch (const ConfigError&) {
      continue;
    }
    if (!validate(file.plan, file.model, file.training).empty()) continue;
    if (!inexpressible(chosen, file.stack, file).empty()) continue;
    const TempDir dir;
    for (const ExportFile& f :
         export_files(file, chosen, chosen.target->write(file, chosen.version), {}, kPresets))
      dir.write(f.name, f.text);
    const std::string what = target + " " + key + " of " + file.model.name + " on " + cluster;
    try {
      expect_same(file, asked_from(dir.path(), cluster), what);
    } catch (const ConfigError& error) {
      ADD_FAILURE() << what << '\n' << error.what();
    }
    shapes.count(file);
    if (::testing::Test::HasFailure()) break;
  }
  return shapes;
}

// The control: one option of what was written changed, and the layout that is read is another.
TEST(RoundTrip, AChangedOptionIsSeen) {
  Drawn drawn(3);
  const PlanFile file =
      plan_of("llama-3.1-8b", "2x8xa100-80gb", "megatron-core", "tp2.pp2.dp4.z1.mbs1", drawn);
  const ChosenTarget chosen = find_export_target("megatron-lm");
  for (const auto& [option, changed] : {std::pair{"", ""},
                                        {"--tensor-model-parallel-size 2", "--tensor-model-parallel-size 4"},
                                        {"  --overlap-grad-reduce\n", ""},
                                        {"--num-layers 32", "--num-layers 30"}}) {
    const TempDir dir;
    for (const ExportFile& f :
         export_files(file, chosen, chosen.target->write(file, chosen.version), {}, kPresets)) {
      std::string text = f.text;
      if (const auto at = text.find(option); at != text.npos && *option)
        text.replace(at, std::strlen(option), changed);
      dir.write(f.name, text);
    }
    const Question read = asked_from(dir.path(), "2x8xa100-80gb");
    const bool same = plan_key(effective(*read.plan, 32)) == plan_key(effective(file.plan, 32)) &&
                      read.model.n_layers == 32;
    EXPECT_EQ(same, *option == 0) << option;
  }
}

TEST(RoundTrip, MegatronLm) {
  const Shapes s = make_trips("megatron-lm", 1, 90);
  EXPECT_EQ(s.read, 90);
  EXPECT_GE(s.interleaved, 4);
  EXPECT_GE(s.uneven, 2);
  EXPECT_GE(s.sharded, 10);
  EXPECT_GE(s.hybrid, 2);
  EXPECT_GE(s.recomputed, 20);
  EXPECT_GE(s.offloaded, 2);
  EXPECT_GE(s.formats, 20);
}

TEST(RoundTrip, Torchtitan) {
  for (const char* target : {"torchtitan", "torchtitan@head"}) {
    const Shapes s = make_trips(target, 2, 60);
    EXPECT_EQ(s.read, 60);
    EXPECT_GE(s.interleaved, 1);
    EXPECT_GE(s.uneven, 1);
    EXPECT_GE(s.sharded, 10);
    EXPECT_GE(s.hybrid, 1);
    EXPECT_GE(s.recomputed, 10);
    EXPECT_GE(s.formats, 5);
  }
}

}  // namespace
}  // namespace sextant::importing
