// Is reading data ever the bottleneck? Tokens a second of the sequences of a step, plain and shuffled over a file larger
// than the caches, and MB a second of every tokenizer.
#include <filesystem>
#include <fstream>
#include <random>

#include <benchmark/benchmark.h>

#include "runtime/data/prepare.hpp"
#include "runtime/data/sequences.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

const std::string& corpus() {
  static const std::string text = [] {
    std::string all;
    for (const char* file : {"README.md", "docs/models-and-limits.md", "docs/json.md"}) {
      std::ifstream in(fs::path(SEXTANT_SOURCE_DIR) / file);
      all.append(std::istreambuf_iterator<char>(in), {});
    }
    return all;
  }();
  return text;
}

// Words drawn anew each time, as a large text has them: most pieces are known, some are not.
std::string shuffled_words(std::size_t bytes) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < corpus().size();) {
    const std::size_t end = std::min(corpus().find_first_of(" \n", at), corpus().size() - 1) + 1;
    words.push_back(corpus().substr(at, end - at));
    at = end;
  }
  std::mt19937 random(1);
  std::string text;
  while (text.size() < bytes) {
    text += words[random() % words.size()];
    if (random() % 50 == 0) text += std::to_string(random()) + " ";
  }
  return text;
}

void encode(benchmark::State& state, const std::string& tokenizer_file) {
  const Tokenizer tokenizer = load_tokenizer(tokenizer_file);
  const std::string text = shuffled_words(4 << 20);
  std::size_t tokens = 0;
  for (auto _ : state) {
    std::vector<std::int32_t> ids;
    tokenizer.encode(text, ids);
    benchmark::DoNotOptimize(ids.data());
    tokens = ids.size();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * text.size()));
  state.counters["bytes/token"] = static_cast<double>(text.size()) / static_cast<double>(tokens);
}

// One rank reads its share of a step: sequences of 2048 tokens out of 128 M tokens (256 MB) on disk.
void read_step(benchmark::State& state, Packing packing) {
  static const fs::path folder = [] {
    const fs::path made = fs::temp_directory_path() / "sextant_data_bench";
    if (!fs::exists(made)) {
      const fs::path text = made.string() + ".txt";
      const std::string block = shuffled_words(1 << 20);
      std::ofstream out(text);
      for (int i = 0; i < 128; ++i) out << block << "\n\n";
      out.close();
      PrepareOptions o;
      o.out = made;
      o.unit = DocumentUnit::paragraph;
      prepare_data(find_texts({text.string()}), byte_tokenizer(), o);
      fs::remove(text);
    }
    return made;
  }();
  constexpr int kSequence = 2048;
  const auto data = std::make_shared<const DataSet>(folder);
  const TokenSource source = training_sequences(
      {{data, 1}}, {.seq_len = kSequence, .global_batch = 16, .seed = 1, .packing = packing});
  std::vector<std::int32_t> tokens(kSequence + 1);
  std::int64_t step = 0;
  for (auto _ : state) {
    for (int s = 0; s < 16; ++s) source(step, s, tokens);
    benchmark::DoNotOptimize(tokens.data());
    ++step;
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * 16 * kSequence);
}

const std::string kGolden = std::string(SEXTANT_SOURCE_DIR) + "/tests/golden/tokenizers/";
BENCHMARK_CAPTURE(encode, bytes, std::string("bytes"))->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, tokenizer_json, kGolden + "tokenizer.json")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, ranks, kGolden + "ranks.model")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, sentencepiece, kGolden + "sentencepiece.model")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_step, across, Packing::across)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(read_step, apart, Packing::apart)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(read_step, within, Packing::within)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sextant

BENCHMARK_MAIN();
