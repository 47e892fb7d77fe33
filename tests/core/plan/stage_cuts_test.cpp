// Cuts of layers into stages, held to what each framework's own code makes or asserts. Golden values were printed by that code where it
// runs without the framework: DeepSpeed v0.6.5's partition_balanced, nanotron 2411b02's loop of build_model().
#include "core/plan/stage_cuts.hpp"

#include <filesystem>
#include <functional>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "core/model/model_files.hpp"
#include "core/plan/plan_key.hpp"
#include "core/plan/stack_spec.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

using Cut = std::vector<int>;
using Cuts = std::vector<Cut>;

std::filesystem::path presets() { return std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets"; }

ModelSpec layers(int n) {
  static const ModelSpec whole = load_model("llama-2-7b", presets());
  ModelSpec m = whole;
  m.n_layers = n;
  return m;
}

ParallelPlan pipeline(int pp, int vp = 1, const Cut& cut = {}) {
  ParallelPlan p;
  p.pp = pp;
  p.vp = vp;
  p.chunks = chunks_of(cut);
  if (vp > 1) p.schedule = PipelineSchedule::interleaved;
  return p;
}

// Every way to give `chunks` chunks n layers, the outer ones perhaps none.
void each_cut(int n, int chunks, const std::function<void(const Cut&)>& visit) {
  Cut cut;
  const auto more = [&](auto self, int left) -> void {
    const auto at = static_cast<int>(cut.size());
    if (at + 1 == chunks) {
      cut.push_back(left);
      visit(cut);
      return cut.pop_back();
    }
    for (int count = at == 0 ? 0 : 1; count <= left; ++count) {
      cut.push_back(count);
      self(self, left - count);
      cut.pop_back();
    }
  };
  more(more, n);
}

// What Megatron-Core 0.12 builds under its options, by transformer_block.py 52-158: every combination of them.
std::set<Cut> core_0_12(int n, int pp, int vp) {
  std::set<Cut> out;
  const auto add = [&](const Cut& of_stages, int embedding, int head) {
    Cut chunks;
    for (int v = 0; v < vp; ++v)
      for (const int stage : of_stages) {
        if (stage % vp != 0) return;
        chunks.push_back(stage / vp);
      }
    chunks.front() -= embedding;
    chunks.back() -= head;
    if (chunks.front() >= 0 && chunks.back() >= 0) out.insert(chunks);
  };
  for (int first = 0; first <= n; ++first)  // 0: not set
    for (int last = 0; last <= n - first; ++last) {
      const int others = pp - (first > 0) - (last > 0), rest = n - first - last;
      if ((first == 0 && last == 0) || others == 0 || rest % others != 0) continue;
      Cut stages(static_cast<std::size_t>(pp), rest / others);
      if (first > 0) stages.front() = first;
      if (last > 0) stages.back() = last;
      add(stages, 0, 0);
    }
  for (const int embedding : {0, 1})
    for (const int head : {0, 1})
      if ((n + embedding + head) % pp == 0)
        add(Cut(static_cast<std::size_t>(pp), (n + embedding + head) / pp), embedding, head);
  return out;
}

// pytorch/torchtitan b5bcd76, distributed/pipeline_parallel.py 390-450.
TEST(StageCuts, EndsThatCountAsLayers) {
  EXPECT_EQ(cut_with_ends(32, 4, 1, 1), (std::vector<int>{8, 9, 8, 7}));
  EXPECT_EQ(cut_with_ends(32, 4, 0, 0), (std::vector<int>{8, 8, 8, 8}));
  EXPECT_EQ(cut_with_ends(30, 4, 1, 1), (std::vector<int>{7, 8, 8, 7}));
  EXPECT_EQ(cut_with_ends(6, 8, 1, 1), (std::vector<int>{0, 1, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(cut_with_ends(4, 8, 1, 1), std::nullopt) << "fewer than there are chunks";
  EXPECT_EQ(cut_with_ends(32, 16, 3, 1), std::nullopt) << "more than a chunk";
}

TEST(StageCuts, EndsAreWhatMegatronCoreBuilds) {
  int allowed = 0, refused = 0;
  for (const auto& [n, pp, vp] :
       {std::tuple{10, 4, 1}, {11, 3, 1}, {7, 2, 1}, {12, 4, 2}, {10, 3, 2}, {9, 2, 2}}) {
    const std::set<Cut> built = core_0_12(n, pp, vp);
    each_cut(n, pp * vp, [&, n = n, pp = pp, vp = vp](const Cut& cut) {
      const bool inner_filled =
          std::all_of(cut.begin() + 1, cut.end() - 1, [](int count) { return count > 0; });
      if (!inner_filled) return;  // no plan has such a chunk
      const bool can = can_cut(UnevenStages::ends, pipeline(pp, vp, cut), layers(n));
      EXPECT_EQ(can, built.contains(cut))
          << n << " over " << pp << "x" << vp << ": " << ::testing::PrintToString(cut);
      ++(can ? allowed : refused);
    });
  }
  EXPECT_GT(allowed, 50);
  EXPECT_GT(refused, 1000);
}

// Slowest chunk first, then squares: by brute force over all cuts that are allowed.
TEST(StageCuts, TheBestOfTheEndsIsFound) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0.1, 5);
  int without = 0;
  for (int round = 0; round < 60; ++round) {
    const int pp = 2 + round % 3, vp = 1 + round % 2, n = 6 + round % 7;
    const EndCosts costs{cost(random), cost(random), cost(random), cost(random), cost(random)};
    double slowest = INFINITY;
    each_cut(n, pp * vp, [&](const Cut& cut) {
      if (!can_cut(UnevenStages::ends, pipeline(pp, vp, cut), layers(n))) return;
      double worst = 0;
      for (int c = 0; c < pp * vp; ++c) {
        const double layer = c % pp == 0 ? costs.first : c % pp == pp - 1 ? costs.last : costs.inner;
        worst = std::max(worst, layer * cut[static_cast<std::size_t>(c)] + (c == 0 ? costs.embedding : 0) +
                                    (c == pp * vp - 1 ? costs.head : 0));
      }
      slowest = std::min(slowest, worst);
    });
    const Cut found = ends_cut(n, pp, vp, costs);
    EXPECT_EQ(found.empty(), std::isinf(slowest)) << n << " over " << pp << "x" << vp;
    if (found.empty()) {
      ++without;
      continue;
    }
    EXPECT_TRUE(can_cut(UnevenStages::ends, pipeline(pp, vp, found), layers(n)));
    double worst = 0;
    for (int c = 0; c < pp * vp; ++c) {
      const double layer = c % pp == 0 ? costs.first : c % pp == pp - 1 ? costs.last : costs.inner;
      worst = std::max(worst, layer * found[static_cast<std::size_t>(c)] + (c == 0 ? costs.embedding : 0) +
                                  (c == pp * vp - 1 ? costs.head : 0));
    }
    EXPECT_NEAR(worst, slowest, 1e-9) << n << " over " << pp << "x" << vp;
  }
  EXPECT_GT(without, 0);
  EXPECT_EQ(ends_cut(30, 4, 1), (Cut{7, 8, 8, 7}));
  EXPECT_EQ(ends_cut(32, 4, 2), (Cut{4, 4, 4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(ends_cut(30, 4, 2), (Cut{3, 4, 4, 4, 4, 4, 4, 3}));  // embedding and head as a layer each
}

TEST(StageCuts, PartitionMethodsAreDeepSpeeds) {
  const auto cuts = [](int n, int pp) {
    return ruled_cuts(UnevenStages::partition_method, pp, 1, layers(n));
  };
  const Cuts thirty = cuts(30, 4);
  ASSERT_GE(thirty.size(), 3u);
  EXPECT_EQ(thirty[0], (Cut{8, 8, 8, 6}));  // type:transformer, the default
  EXPECT_EQ(thirty[1], (Cut{7, 8, 8, 7}));  // type:transformer|embedding
  EXPECT_EQ(thirty.back(), (Cut{6, 9, 9, 6}));
  EXPECT_EQ(cuts(32, 5)[0], (Cut{7, 7, 7, 7, 4}));
  EXPECT_EQ(cuts(13, 4)[0], (Cut{4, 4, 4, 1}));
  EXPECT_EQ(cuts(13, 4)[1], (Cut{3, 4, 4, 2}));
  // BLOOM's own: 70 layers over 12 stages. By parameters, with its embedding of 250,880 words, the same.
  const ModelSpec bloom = load_model("bloom-176b", presets());
  const Cut published = {5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5};
  const Cuts of_bloom = ruled_cuts(UnevenStages::partition_method, 12, 1, bloom);
  EXPECT_EQ(of_bloom[0], (Cut{6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 4}));
  EXPECT_EQ(of_bloom[1], published);
  EXPECT_TRUE(can_cut(UnevenStages::partition_method, pipeline(12, 1, published), bloom));
  EXPECT_EQ(cut_option(UnevenStages::partition_method, pipeline(12, 1, published), bloom),
            "--pp-partition-method type:transformer|embedding");
  EXPECT_FALSE(can_cut(UnevenStages::partition_method, pipeline(4, 1, {9, 7, 7, 7}), layers(30)));
  // Uniform over 24 stages leaves the first without a layer, where it fails.
  for (const Cut& cut : cuts(70, 24)) EXPECT_GT(cut.front(), 0);
}

TEST(StageCuts, BlocksByTheirCostAreNanotrons) {
  const auto cut = [](const char* model, int pp) {
    return ruled_cuts(UnevenStages::block_compute_costs, pp, 1, load_model(model, presets()));
  };
  EXPECT_EQ(cut("llama-2-7b", 2), (Cuts{{17, 15}}));
  EXPECT_EQ(cut("llama-2-7b", 8), (Cuts{{5, 4, 4, 4, 4, 4, 4, 3}}));
  EXPECT_EQ(cut("llama-3-8b", 8), (Cuts{{5, 4, 4, 5, 4, 4, 4, 2}}));
  EXPECT_EQ(cut("llama-2-13b", 4), (Cuts{{11, 10, 10, 9}}));
  EXPECT_TRUE(cut("llama-3.2-1b", 8).empty()) << "the last stage would hold no layer";
  const ModelSpec m = load_model("llama-2-7b", presets());
  EXPECT_TRUE(can_cut(UnevenStages::block_compute_costs, pipeline(2, 1, {17, 15}), m));
  EXPECT_FALSE(can_cut(UnevenStages::block_compute_costs, pipeline(2, 1, {16, 16}), m))
      << "stated, and not its own";
  EXPECT_TRUE(can_cut(UnevenStages::block_compute_costs, pipeline(2), m)) << "left to it";
  EXPECT_FALSE(
      can_cut(UnevenStages::block_compute_costs, pipeline(8), load_model("llama-3.2-1b", presets())));
}

TEST(StageCuts, ItemsAndMiddles) {
  // Paddle's uniform: 33 items over 4, the last takes one more; embedding, norm and head are items.
  EXPECT_EQ(ruled_cuts(UnevenStages::seg_method, 4, 1, layers(30)), (Cuts{{7, 8, 8, 7}}));
  EXPECT_EQ(ruled_cuts(UnevenStages::seg_method, 4, 1, layers(31)), (Cuts{{7, 8, 9, 7}}));
  EXPECT_EQ(ruled_cuts(UnevenStages::seg_method, 4, 1, layers(32)), (Cuts{{8, 8, 8, 8}}));
  EXPECT_TRUE(ruled_cuts(UnevenStages::seg_method, 4, 2, layers(30)).empty());
  EXPECT_FALSE(can_cut(UnevenStages::seg_method, pipeline(4, 1, {7, 9, 9, 7}), layers(32)));
  EXPECT_FALSE(can_cut(UnevenStages::seg_method, pipeline(4, 2), layers(30)));
  // Colossal-AI: what its user says of stages; of virtual ones the middle takes the remainder.
  EXPECT_TRUE(can_cut(UnevenStages::per_stage, pipeline(4, 1, {1, 9, 2, 18}), layers(30)));
  EXPECT_EQ(ruled_cuts(UnevenStages::per_stage, 4, 2, layers(30)), (Cuts{{3, 4, 4, 4, 4, 4, 4, 3}}));
  EXPECT_FALSE(can_cut(UnevenStages::per_stage, pipeline(4, 2, {4, 4, 4, 4, 4, 4, 3, 3}), layers(30)));
}

TEST(StageCuts, OptionsThatMakeThem) {
  const auto option = [](const ParallelPlan& p, int n) {
    return cut_option(UnevenStages::ends, p, layers(n));
  };
  EXPECT_EQ(option(pipeline(4, 1, {7, 8, 8, 7}), 30),
            "num_layers_in_first_pipeline_stage=7, num_layers_in_last_pipeline_stage=7");
  EXPECT_EQ(option(pipeline(4, 1, {8, 8, 8, 6}), 30), "num_layers_in_last_pipeline_stage=6");
  EXPECT_EQ(option(pipeline(2, 1, {14, 16}), 30), "num_layers_in_first_pipeline_stage=14");
  EXPECT_EQ(option(pipeline(4, 2, {3, 4, 4, 4, 3, 4, 4, 4}), 30), "num_layers_in_first_pipeline_stage=6");
  EXPECT_EQ(option(pipeline(4, 2, {3, 4, 4, 4, 4, 4, 4, 3}), 30),
            "account_for_embedding_in_pipeline_split=True, account_for_loss_in_pipeline_split=True");
  EXPECT_EQ(option(pipeline(4, 1, {8, 8, 8, 8}), 32), "");
  EXPECT_EQ(cut_option(UnevenStages::per_stage, pipeline(2, 1, {14, 16}), layers(30)),
            "num_layers_per_stage=[14, 16]");
  EXPECT_EQ(cut_option(UnevenStages::any, pipeline(2, 1, {14, 16}), layers(30)), "");
}

// Every preset against four cuts of 30 layers over 4 stages: what its framework's code can do.
TEST(StageCuts, StacksAcceptWhatTheirFrameworkCan) {
  struct Able {
    const char* stack;
    bool ends, first_longer, inner_longer, steps;
  };
  const Able cases[] = {{"megatron-core", true, true, true, true},
                        {"sextant", true, true, true, true},
                        {"torchtitan", true, true, true, true},
                        {"torchtitan-eager", true, true, true, true},
                        {"deepspeed-zero", true, true, true, true},
                        {"alpa", true, true, true, true},
                        {"aleph-alpha", true, true, true, true},
                        {"colossal-ai", true, true, true, true},
                        {"nemo-dgxc", true, true, false, false},
                        {"megatron-deepspeed-bloom", true, false, true, false},
                        {"megatron-deepspeed-bloom-bf16", true, false, true, false},
                        {"paddle-llama", true, false, false, false},
                        {"nanotron", false, false, false, true},
                        {"nemo-2024", false, false, false, false},
                        {"megatron-lm-2021", false, false, false, false},
                        {"megatron-lm-2024", false, false, false, false},
                        {"megatron-llama-2023", false, false, false, false},
                        {"megatron-llama-2023-plain", false, false, false, false}};
  std::set<std::string> seen;
  for (const Able& c : cases) {
    seen.insert(c.stack);
    const StackSpec stack = load_stack(c.stack, presets());
    const auto accepts = [&](const Cut& cut) {
      ParallelPlan p = pipeline(4, 1, cut);
      p.overlap_grad_reduce = p.overlap_param_gather = false;
      TrainingSpec t;
      t.gradient = own_gradient_format(stack, t.parameter);
      const auto why = refuses(stack, p, layers(30), t);
      for (const char* reason : {"needs equal stages", "other numbers of layers", "deals layers"})
        if (why && why->text.find(reason) != std::string::npos) return false;
      return true;
    };
    EXPECT_EQ(accepts({7, 8, 8, 7}), c.ends) << c.stack;
    EXPECT_EQ(accepts({9, 7, 7, 7}), c.first_longer) << c.stack;
    EXPECT_EQ(accepts({6, 9, 9, 6}), c.inner_longer || c.stack == std::string("nemo-dgxc")) << c.stack;
    EXPECT_EQ(accepts({8, 8, 7, 7}), c.steps) << c.stack;
  }
  for (const std::string& name : stack_names(presets())) {
    const StackSpec s = load_stack(name, presets());
    EXPECT_EQ(seen.contains(name), s.can.pipeline_parallel)
        << name
        << (s.can.pipeline_parallel ? " has pipeline stages and needs a row in cases[]" : " is in cases[]");
  }
}

TEST(StageCuts, RefusalsSayWhatToDo) {
  const auto text = [](const char* stack, const ParallelPlan& p, int n) {
    const auto why = refuses(load_stack(stack, presets()), p, layers(n), TrainingSpec{});
    return why ? why->text : "";
  };
  const std::string ends = text("nemo-dgxc", pipeline(4, 1, {8, 8, 7, 7}), 30);
  EXPECT_NE(ends.find("gives only the first and the last of pp=4 stages other numbers"), std::string::npos)
      << ends;
  EXPECT_NE(ends.find("use L7-8-8-7"), std::string::npos) << ends;
  const std::string by_vp = text("nemo-dgxc", pipeline(4, 2, {4, 4, 4, 4, 4, 4, 3, 3}), 30);
  EXPECT_NE(by_vp.find("vp=2"), std::string::npos) << by_vp;
  const std::string by_rule = text("nanotron", pipeline(2, 1, {16, 16}), 32);
  EXPECT_NE(by_rule.find("deals layers by its block_compute_costs: 17-15"), std::string::npos) << by_rule;
  EXPECT_NE(text("megatron-lm-2024", pipeline(4), 30).find("needs equal stages: 30 layers over 4 chunks"),
            std::string::npos);
  // A key without L takes what the framework does, and says so.
  const StackSpec nanotron = load_stack("nanotron", presets());
  const ModelSpec m = layers(32);
  const FilledPlan filled = fill_plan_key("pp2.z1", nanotron, 4, Dtype::bf16, &m);
  EXPECT_EQ(filled.plan.chunks, chunks_of({17, 15}));
  ASSERT_FALSE(filled.notes.empty());
  EXPECT_NE(filled.notes[0].find("L17-15"), std::string::npos) << filled.notes[0];
  EXPECT_TRUE(fill_plan_key("pp2.z1", load_stack("megatron-core", presets()), 4, Dtype::bf16, &m)
                  .plan.chunks.empty());
  // Virtual stages, which such a framework lacks, are what is refused, not the number of chunks of its rule.
  for (const char* stack : {"nanotron", "megatron-deepspeed-bloom"}) {
    const StackSpec ruled = load_stack(stack, presets());
    const ParallelPlan interleaved = fill_plan_key("pp2.vp2", ruled, 4, Dtype::bf16, &m).plan;
    EXPECT_TRUE(interleaved.chunks.empty()) << stack;
    const auto why = refuses(ruled, interleaved, m, TrainingSpec{});
    ASSERT_TRUE(why) << stack;
    EXPECT_NE(why->text.find("has no interleaved schedule (vp=2)"), std::string::npos) << why->text;
  }
}

// Files of version 0.1 say true or false.
TEST(StageCuts, FormerValuesAreReadOnce) {
  const TempDir folder;
  const auto file = [&](const char* value) {
    return folder
        .write("own.json",
               std::string(R"({"base":"megatron-core","name":"own","can":{"uneven_stages":)") + value + "}}")
        .string();
  };
  std::vector<std::string> notes;
  EXPECT_EQ(load_stack(file("true"), presets(), "", &notes).can.uneven_stages, UnevenStages::any);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("can.uneven_stages true is read as \"any\""), std::string::npos) << notes[0];
  EXPECT_EQ(load_stack(file("false"), presets(), "", &notes).can.uneven_stages, UnevenStages::none);
  notes.clear();
  EXPECT_EQ(load_stack(file("\"ends\""), presets(), "", &notes).can.uneven_stages, UnevenStages::ends);
  EXPECT_TRUE(notes.empty());
  EXPECT_THROW(load_stack(file("\"some\""), presets()), ConfigError);
  EXPECT_THROW(load_stack(file("1"), presets()), ConfigError);
}

}  // namespace
}  // namespace sextant
