// Extents that depend on a choice: the head's chunk, and tensors that are columns of a wider one.
#include "core/graph/block_tensors.hpp"

#include <gtest/gtest.h>

#include "core/graph/work.hpp"
#include "kernels/blocks.hpp"

namespace sextant {
namespace {

BlockWork head(int tokens, int vocab, Dtype dtype = Dtype::bf16) {
  BlockWork w;
  w.kind = BlockKind::head;
  w.pass = Pass::backward;
  w.dtype = dtype;
  w.batch = 1;
  w.seq_q = w.seq_k = tokens;
  w.hidden = 64;
  w.vocab = vocab;
  return w;
}

TEST(HeadChunk, HoldsWhatItMayInEvenParts) {
  const Bytes two = from_gib(2);
  // 6 bytes a logit: 2 GiB are 2,790 tokens of 128,256 logits, in whole 64s 2,752; 8,192 tokens are three chunks.
  EXPECT_EQ(head_chunk(head(8192, 128256), two), 2752);
  EXPECT_EQ(head_chunk(head(2048, 32000), two), 2048) << "all of them";
  EXPECT_EQ(head_chunk(head(8192, 128256, Dtype::fp32), two), 4096) << "4 bytes a logit: two chunks";
  EXPECT_EQ(head_chunk(head(4096, 128256), from_gib(0.01)), 64) << "64 at the least";
  for (const double gib : {0.05, 0.3, 1.0, 2.0}) {
    BlockWork w = head(5000, 50000);
    const std::int64_t chunk = head_chunk(w, from_gib(gib));
    w.chunk = static_cast<int>(chunk);
    EXPECT_EQ(head_chunk(w), chunk) << "what the work says";
    EXPECT_LE(total_bytes(workspace_tensors(w, chunk)), from_gib(gib)) << gib;
    EXPECT_GT(total_bytes(workspace_tensors(w, chunk)), from_gib(gib / 3)) << gib << ": control";
  }
}

TEST(JoinedTensors, AreColumnsOfOneWithinTheSameBytes) {
  BlockWork w;
  w.kind = BlockKind::attention;
  w.dtype = Dtype::bf16;
  w.batch = 3;
  w.seq_q = w.seq_k = 5;
  w.hidden = 24;
  w.heads = 3;
  w.kv_heads = 1;
  w.head_dim = 8;
  BlockWork mlp = w;
  mlp.kind = BlockKind::mlp;
  mlp.ffn = 20;
  for (const BlockWork& apart : {w, mlp}) {
    BlockWork joined = apart;
    joined.joined = true;
    EXPECT_EQ(saved_bytes(joined), saved_bytes(apart));
    std::vector<std::byte> memory(static_cast<std::size_t>(saved_bytes(joined).v));
    const bool attention = apart.kind == BlockKind::attention;
    const char *first = attention ? "q" : "gate", *second = attention ? "kv" : "up";
    const TensorSet one(saved_tensors(joined), memory.data()), two(saved_tensors(apart), memory.data());
    const TensorView a = one[first], b = one[second];
    EXPECT_EQ(a.stride, a.cols + b.cols);
    EXPECT_EQ(b.stride, a.stride);
    EXPECT_EQ(static_cast<std::byte*>(b.data) - static_cast<std::byte*>(a.data), 2 * a.cols);
    EXPECT_EQ(a.data, two[first].data);
    const auto* end = static_cast<std::byte*>(b.data) + 2 * ((b.rows - 1) * b.stride + b.cols);
    if (attention) {
      EXPECT_LE(end, static_cast<std::byte*>(one["context"].data)) << "what follows stands where it did";
    }
    EXPECT_LE(end, memory.data() + memory.size());
    EXPECT_EQ(two[second].stride, two[second].cols) << "control";
  }
}

TEST(WorkKey, SaysWhatIsJoinedAndTheChunk) {
  BlockWork w = head(4096, 32000);
  w.chunk = 2048;
  EXPECT_EQ(parse_work_key(work_key(w)), Work(w));
  BlockWork mlp = w;
  mlp.kind = BlockKind::mlp;
  mlp.ffn = 256;
  mlp.vocab = mlp.chunk = 0;
  mlp.joined = true;
  EXPECT_EQ(parse_work_key(work_key(mlp)), Work(mlp));
  BlockWork apart = mlp;
  apart.joined = false;
  EXPECT_NE(work_key(mlp), work_key(apart));
}

}  // namespace
}  // namespace sextant
