// Runs in CSV form: every stated field arrives, and every kind of damage is named with file, line and column.
#include "core/runs/run_row.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/csv.hpp"
#include "core/base/error.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

const std::string kHeader =
    "run_id,source,source_ref,date,framework,model,layers,hidden,heads,kv_heads,ffn_hidden,mlp,vocab,tied_"
    "embeddings,seq_"
    "len,gpu,nodes,gpus_per_node,internode_GBps_per_node,fabric,tp,sequence_parallel,cp,pp,virtual_stages,"
    "pipeline_"
    "schedule,dp,zero_stage,shard_degree,micro_batch,global_batch,recompute,attention,norm_kernel,precision,"
    "grad_dtype,"
    "overlap,offload,step_time_s,peak_memory_GiB,memory_kind,outcome,quality,group_id,assumed,notes\n";

// Values of the LLaMA-13B row of Megatron-LLaMA at 32 GPUs, in the order of the header.
std::string row(const std::string& from = "", const std::string& to = "") {
  std::string text =
      "ml-1,megatron_llama,x,2023-10,Megatron-LLaMA,llama-13b,40,5120,40,40,13824,gated,32000,0,2048,A100-"
      "SXM4-80GB,4,8,"
      "100,\"NVLink3, NVSwitch; 4x200 "
      "Gb/s\",2,1,1,1,1,none,16,1,,4,2048,selective,flash2,unknown,bf16,,\"dp_grad,param_"
      "gather\",none,35.5,61,torch_peak,ok,b,g,grad_dtype;zero_stage,said \"\"so\"\"\n";
  if (!from.empty()) text.replace(text.find(from), from.size(), to);
  return text;
}

std::vector<RunRow> read(const std::string& text) {
  const TempDir dir;
  return read_runs(dir.write("runs.csv", text));
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(RunRow, EveryFieldArrives) {
  std::string quoted = row();
  quoted.replace(quoted.find("said"), quoted.size(), "\"said \"\"so\"\", twice\"\n");
  const auto rows = read(kHeader + quoted);
  ASSERT_EQ(rows.size(), 1u);
  const RunRow& r = rows[0];
  EXPECT_EQ(r.line, 2);
  EXPECT_EQ(r.model.n_layers, 40);
  EXPECT_EQ(r.model.head_dim, 128);
  EXPECT_TRUE(r.model.gated_mlp);
  EXPECT_EQ(r.fabric, "NVLink3, NVSwitch; 4x200 Gb/s");
  EXPECT_EQ(r.plan.tp, 2);
  EXPECT_TRUE(r.plan.sequence_parallel);
  EXPECT_EQ(r.plan.recompute.kind, RecomputeKind::selective);
  EXPECT_TRUE(r.data_overlap_stated);
  EXPECT_TRUE(r.overlap_stated && r.plan.overlap_grad_reduce && r.plan.overlap_param_gather);
  EXPECT_FALSE(r.plan.overlap_tp);
  EXPECT_EQ(r.attention, AttentionKernel::flash2);
  EXPECT_FALSE(r.norm_fused.has_value());
  EXPECT_FALSE(r.gradient.has_value());
  EXPECT_EQ(r.training.global_batch, 2048);
  EXPECT_DOUBLE_EQ(r.step_time->v, 35.5);
  EXPECT_DOUBLE_EQ(*r.peak_memory_GiB, 61);
  EXPECT_EQ(r.assumed, (std::vector<std::string>{"grad_dtype", "zero_stage"}));
  EXPECT_EQ(r.notes, "said \"so\", twice");
}

TEST(RunRow, EmptyMeasurementsAreAllowed) {
  const auto rows = read(kHeader + row(",35.5,61,", ",,,"));
  EXPECT_FALSE(rows[0].step_time || rows[0].peak_memory_GiB);
}

TEST(RunRow, AStepWithoutItsTimeHasItFromTokensPerSecond) {
  const auto with_rate = [](std::string text, const std::string& rate) {
    std::string header = kHeader;
    header.insert(header.size() - 1, ",tokens_per_s_per_gpu");
    text.insert(text.size() - 1, "," + rate);
    return read(header + text)[0].step_time;
  };
  const auto from_rate = with_rate(row(",35.5,61,", ",,61,"), "4096");
  ASSERT_TRUE(from_rate);
  EXPECT_DOUBLE_EQ(from_rate->v, 2048.0 * 2048 / (4096 * 32));
  EXPECT_DOUBLE_EQ(with_rate(row(), "4096")->v, 35.5);  // a measured time comes first
  EXPECT_FALSE(with_rate(row(",35.5,61,", ",,61,"), ""));
  EXPECT_THROW(with_rate(row(), "-1"), ConfigError);
}

TEST(RunRow, DamageIsNamed) {
  const auto names = [](const std::string& error, const std::string& what) {
    return error.find(what) != std::string::npos && error.find(":2") != std::string::npos;
  };
  EXPECT_TRUE(names(error_of(kHeader + row(",40,5120,", ",forty,5120,")), "layers"))
      << error_of(kHeader + row(",40,5120,", ",forty,5120,"));
  EXPECT_TRUE(names(error_of(kHeader + row(",5120,40,", ",5120,41,")), "heads"));
  EXPECT_TRUE(names(error_of(kHeader + row(",40,40,13824,", ",40,7,13824,")), "kv_heads: found 7"));
  EXPECT_TRUE(names(error_of(kHeader + row(",35.5,", ",1e-9,")), "step_time_s: found 1e-9"));
  EXPECT_TRUE(names(error_of(kHeader + row(",35.5,", ",1e300,")), "step_time_s: found 1e300"));
  EXPECT_TRUE(names(error_of(kHeader + row(",35.5,", ",1e-320,")), "a number of at least 1e-100"));
  EXPECT_TRUE(names(error_of(kHeader + row("gated", "mixture")), "mlp"));
  EXPECT_TRUE(names(error_of(kHeader + row("flash2", "flash9")), "attention"));
  EXPECT_TRUE(names(error_of(kHeader + row(",none,16,1,", ",none,8,1,")), "tp*cp*pp*dp"));
  EXPECT_TRUE(names(error_of(kHeader + row(",4,2048,", ",3,2048,")), "global_batch"));
  EXPECT_TRUE(names(error_of(kHeader + row(",35.5,", ",-35.5,")), "step_time_s"));
  EXPECT_TRUE(names(error_of(kHeader + row(",35.5,", ",nan,")), "step_time_s"));
  EXPECT_TRUE(names(error_of(kHeader + row(",ok,", ",fine,")), "outcome"));
}

TEST(RunRow, OneBadRowIsKeptWithWhatIsWrong) {
  const std::string good = row(), bad = row(",40,5120,", ",forty,5120,");
  const TempDir dir;
  const auto rows = read_runs(dir.write("runs.csv", kHeader + bad + good), BadRows::keep);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NE(rows[0].unreadable.find("layers"), std::string::npos) << rows[0].unreadable;
  EXPECT_NE(rows[0].unreadable.find("runs.csv:2"), std::string::npos) << rows[0].unreadable;
  EXPECT_EQ(rows[1].unreadable, "");
  EXPECT_EQ(rows[1].model.n_layers, 40);
  // Without a sound row there is nothing to answer.
  EXPECT_THROW(read_runs(dir.write("bad.csv", kHeader + bad), BadRows::keep), ConfigError);
  const std::string nameless = good.substr(good.find(','));
  const auto unnamed = read_runs(dir.write("nameless.csv", kHeader + nameless + good), BadRows::keep);
  EXPECT_NE(unnamed[0].unreadable.find("run_id"), std::string::npos) << unnamed[0].unreadable;
  const auto ragged = read_runs(dir.write("ragged.csv", kHeader + "ml-2,x\n" + good), BadRows::keep);
  EXPECT_EQ(ragged[0].run_id, "ml-2");
  EXPECT_NE(ragged[0].unreadable.find("found 2 cells"), std::string::npos) << ragged[0].unreadable;
  EXPECT_EQ(ragged[1].unreadable, "");
  EXPECT_NE(error_of(kHeader + bad + good).find("layers"), std::string::npos);
}

TEST(RunRow, WhatIsClearIsRead) {
  const auto one = [](const std::string& from, const std::string& to) {
    return read(kHeader + row(from, to))[0];
  };
  EXPECT_TRUE(one(",ok,", ",OOM,").out_of_memory);
  EXPECT_EQ(one(",2048,A100", ",2048.0,A100").training.seq_len, 2048);
  EXPECT_EQ(error_of(kHeader + row(",2048,A100", ",2048.5,A100")).find("seq_len") == std::string::npos,
            false);
  EXPECT_EQ(one("bf16", "BF16").training.compute, Dtype::bf16);
  EXPECT_TRUE(one("32000,0,", "32000,TRUE,").model.tied_embeddings);
  EXPECT_FALSE(one("32000,0,", "32000,False,").model.tied_embeddings);
  EXPECT_EQ(read(kHeader + row("\n", ",,\n"))[0].model.n_layers, 40);  // empty cells behind the last column
  EXPECT_EQ(one("bf16", "bfloat16").training.compute, Dtype::bf16);
  EXPECT_EQ(one("flash2", "FlashAttention-2").attention, AttentionKernel::flash2);
  for (const char* zero : {",16,ZeRO-2,", ",16,zero2,", ",16,Stage 2,"})
    EXPECT_EQ(one(",16,1,", zero).plan.zero_stage, 2) << zero;
  EXPECT_EQ(one(",16,1,", ",16,FSDP,").plan.zero_stage, 3);
  EXPECT_NE(error_of(kHeader + row(",16,1,", ",16,ZeRO-4,")).find("zero_stage"), std::string::npos);
  EXPECT_EQ(one("selective", "no").plan.recompute, Recompute{});
  EXPECT_EQ(one("selective", "True").plan.recompute, (Recompute{RecomputeKind::full, -1}));
  EXPECT_FALSE(one("selective", "Selective").recompute_by_operation);
  EXPECT_TRUE(one("selective", "selective:op").recompute_by_operation);
}

TEST(RunRow, EmptyCellsSayWhatIsUsual) {
  const auto one = [](const std::string& from, const std::string& to) {
    return read(kHeader + row(from, to))[0];
  };
  EXPECT_EQ(one("5120,40,40,", "5120,40,,").model.n_kv_heads, 40);
  EXPECT_FALSE(one("32000,0,", "32000,,").model.tied_embeddings);
  const RunRow r = one(",2,1,1,1,1,none,16,", ",2,,,1,,none,,");
  EXPECT_EQ(r.plan.cp, 1);
  EXPECT_EQ(r.plan.vp, 1);
  EXPECT_EQ(r.plan.dp, 16);
  EXPECT_FALSE(r.plan.sequence_parallel);
  EXPECT_NE(error_of(kHeader + row("5120,40,40,", "5120,,40,")), "");  // heads are not guessed
}

TEST(RunRow, SchedulesAreRead) {
  const auto schedule = [](const char* stated, const char* vp = "1") {
    return read(kHeader + row(",2,1,1,1,1,none,16,", fmt::format(",2,1,1,2,{},{},8,", vp, stated)))[0]
        .plan.schedule;
  };
  EXPECT_EQ(schedule("1f1b"), PipelineSchedule::one_f_one_b);
  EXPECT_EQ(schedule("GPipe"), PipelineSchedule::gpipe);
  EXPECT_EQ(schedule("zero bubble"), PipelineSchedule::zero_bubble);
  EXPECT_EQ(schedule("ZB-H1"), PipelineSchedule::zero_bubble);
  EXPECT_EQ(schedule("zbv", "2"), PipelineSchedule::interleaved);
  EXPECT_EQ(schedule("zbv"), PipelineSchedule::one_f_one_b);
  EXPECT_EQ(schedule("AFAB"), PipelineSchedule::gpipe);
}

TEST(RunRow, WhatIsMeasuredMayHaveNoColumn) {
  std::string header = kHeader;
  for (const char* column : {"step_time_s", "outcome"}) header.replace(header.find(column), 4, "left");
  const auto rows = read(header + row());
  EXPECT_FALSE(rows[0].step_time || rows[0].out_of_memory);
}

TEST(RunRow, MissingColumnIsNamedWithItsLikelyMisspelling) {
  std::string header = kHeader;
  header.replace(header.find("micro_batch"), 11, "mico_batch_");
  EXPECT_NE(error_of(header + row()).find("micro_batch"), std::string::npos);
}

TEST(Csv, BadFiles) {
  EXPECT_THROW(parse_csv("", "f"), ConfigError);
  EXPECT_THROW(parse_csv("a,b\n1,2,3\n", "f"), ConfigError);
  EXPECT_THROW(parse_csv("a,a\n1,2\n", "f"), ConfigError);
  EXPECT_THROW(parse_csv("a,b\n1,\"2\n", "f"), ConfigError);
  EXPECT_THROW(read_csv("/nowhere.csv"), ConfigError);
}

TEST(Csv, QuotesAndLineEnds) {
  const CsvTable t = parse_csv(
      "\xEF\xBB\xBF"
      "a,b\r\n\"x,\"\"y\"\"\nz\",2\r\n\r\nq,\n",
      "f");
  ASSERT_EQ(t.rows.size(), 2u);
  EXPECT_EQ(t.cell(t.rows[0], "a"), "x,\"y\"\nz");
  EXPECT_EQ(t.cell(t.rows[1], "b"), "");
  EXPECT_EQ(t.rows[1].line, 5);
  for (const std::string s : {"plain", "with,comma", "with \"quote\"", "two\nlines"})
    EXPECT_EQ(parse_csv("a\n" + csv_field(s) + "\n", "f").rows[0].cells[0], s);
}

}  // namespace
}  // namespace sextant
