#include "tests/fuzz/targets.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>

#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/csv.hpp"
#include "core/base/json_io.hpp"
#include "core/base/safetensors.hpp"
#include "core/cluster/cluster_spec.hpp"
#include "core/cluster/topology.hpp"
#include "core/graph/work.hpp"
#include "core/model/model_files.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/plan_file.hpp"
#include "core/plan/stack_spec.hpp"
#include "core/runs/run_row.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "runtime/data/block_encoder.hpp"
#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/data/sentencepiece_tokenizer.hpp"
#include "runtime/data/utf8.hpp"
#include "runtime/weights/weight_index.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::fuzz {
namespace {

using nlohmann::json;

// True when `read` accepts; bad input is refused with ConfigError and nothing else.
template <class Read>
bool accepts(Read read) {
  try {
    read();
    return true;
  } catch (const ConfigError& e) {
    SEXTANT_CHECK(!e.problems().empty() && e.what()[0] != '\0', "an error without words");
    return false;
  }
}

// Written and read again, a value is the same.
template <class T>
void check_round_trip(const T& value) {
  SEXTANT_CHECK(parse_json(json(value).dump(), "again").get<T>() == value, "JSON round trip");
}

}  // namespace

void plan_key(std::string_view text) {
  ParallelPlan plan;
  if (!accepts([&] { plan = parse_plan_key(text); })) return;
  const std::string key = sextant::plan_key(plan);
  SEXTANT_CHECK(parse_plan_key(key) == plan, "plan key round trip");
  SEXTANT_CHECK(plan.world() >= 1, "a world of no ranks");
  check_round_trip(plan);
}

void work_key(std::string_view text) {
  Work work;
  if (!accepts([&] { work = parse_work_key(text); })) return;
  const std::string key = sextant::work_key(work);
  SEXTANT_CHECK(parse_work_key(key) == work, "work key round trip");
  SEXTANT_CHECK(sextant::work_key(parse_work_key(key)) == key, "a work with two keys");
}

void model_json(std::string_view text) {
  ModelSpec model;
  if (!accepts([&] { model = model_from_json(parse_json(text, "fuzz"), "fuzz"); })) return;
  SEXTANT_CHECK(validate(model).empty(), "an unlawful model was accepted");
  SEXTANT_CHECK(parameter_counts(model).total > 0 && matmul_parameters(model) > 0, "counts overflow");
  check_round_trip(model);
}

void plan_json(std::string_view text) {
  json j;
  if (!accepts([&] { j = parse_json(text, "fuzz"); })) return;
  ParallelPlan plan;
  TrainingSpec training;
  if (accepts([&] { training = j.get<TrainingSpec>(); })) check_round_trip(training);
  if (!accepts([&] { plan = j.get<ParallelPlan>(); })) return;
  check_round_trip(plan);
  const std::string key = sextant::plan_key(plan);
  ModelSpec model;
  model.n_layers = 40, model.hidden = 5120, model.n_heads = model.n_kv_heads = 40, model.head_dim = 128;
  model.ffn_hidden = 13824, model.vocab_size = 32000;
  if (!validate(plan, model, training).empty()) return;
  SEXTANT_CHECK(parse_plan_key(key) == plan, "a lawful plan has a key");
  const RankGrid grid(plan);
  SEXTANT_CHECK(grid.rank(grid.coord(plan.world() - 1)) == plan.world() - 1, "rank grid");
  int layers = 0;
  for (const auto& range : layer_ranges(plan, model.n_layers)) layers += range.count;
  SEXTANT_CHECK(layers == model.n_layers, "layers lost");
}

void cluster_json(std::string_view text) {
  ClusterSpec cluster;
  if (!accepts([&] { cluster = parse_json(text, "fuzz").get<ClusterSpec>(); })) return;
  SEXTANT_CHECK(validate(cluster).empty(), "an unlawful cluster was accepted");
  SEXTANT_CHECK(cluster.gpus() >= 1 && cluster.gpus() <= cluster.nodes * cluster.node.gpus, "GPUs");
  check_round_trip(cluster);
  if (cluster.nodes > 16 || cluster.node.gpus > 16) return;
  const Topology topology(cluster);  // every lawful cluster is a graph
  SEXTANT_CHECK(topology.ranks() == cluster.gpus(), "ranks of the graph");
}

void stack_json(std::string_view text) {
  StackSpec stack;
  if (accepts([&] { stack = parse_json(text, "fuzz").get<StackSpec>(); })) check_round_trip(stack);
}

void plan_file(std::string_view text) {
  PlanFile file;
  if (!accepts([&] { file = parse_json(text, "fuzz").get<PlanFile>(); })) return;
  SEXTANT_CHECK(validate(file).empty(), "an unlawful plan file was accepted");
  check_round_trip(file);
}

void runs_csv(std::string_view text) {
  std::vector<RunRow> rows;
  if (!accepts([&] { rows = runs_of(parse_csv(text, "fuzz")); })) return;
  for (const RunRow& r : rows) {
    SEXTANT_CHECK(r.plan.world() == r.nodes * r.gpus_per_node, "ranks");
    SEXTANT_CHECK(r.training.global_batch % (r.plan.micro_batch * r.plan.dp) == 0, "batch");
    SEXTANT_CHECK(parameter_counts(r.model).total > 0, "counts overflow");
  }
}

void manifest(std::string_view text) {
  (void)accepts([&] { (void)parse_manifest(text, "fuzz"); });
  (void)accepts([&] { (void)parse_extents(text, "fuzz"); });
  Manifest m;  // the digest stops damage, so let the text have the one that fits
  if (!accepts([&] { m = parse_manifest(with_digest(text), "fuzz"); })) return;
  SEXTANT_CHECK(validate(m).empty(), "an unlawful manifest was accepted");
  SEXTANT_CHECK(parse_manifest(manifest_text(m), "again") == m, "manifest round trip");
}

void weight_index(std::string_view text) {
  WeightIndex index;
  if (!accepts([&] { index = parse_weight_index(text, "fuzz"); })) return;
  SEXTANT_CHECK(!index.shard_of.empty(), "an index of nothing");
  for (const auto& [tensor, shard] : index.shard_of) {
    SEXTANT_CHECK(shard.find('/') == shard.npos, "a shard elsewhere");
    SEXTANT_CHECK(shard.ends_with(".safetensors"), "a shard of another kind");
  }
  SEXTANT_CHECK(parse_weight_index(to_text(index), "again") == index, "index round trip");
}

void set_path(std::string_view text) {
  static const json whole = parse_json(R"({"name": "c", "nodes": 2, "device": {"peak_TFLOPS": {"bf16": 312}},
      "defects": [{"node": 1}, {"node": 0, "gpu": 3}], "rails": true, "spare": null})",
                                       "fuzz");
  const std::size_t equals = std::min(text.find('='), text.size());
  json changed = whole;
  if (!accepts([&] {
        set_json_path(changed, text.substr(0, equals), text.substr(std::min(equals + 1, text.size())));
      }))
    return;
  SEXTANT_CHECK(changed.is_object() && changed.size() >= whole.size(), "a field was lost");
  SEXTANT_CHECK(changed.size() <= whole.size() + 1, "more than one field was added");
}

// A tokenizer that was accepted encodes anything, and gives it back.
void check_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  for (const std::string_view x :
       {text.substr(0, 200), std::string_view("It's 12345\r\n\n \xff \xc3\xa9 x")}) {
    const auto ids = tokenizer.encode(x);
    for (const std::int32_t id : ids)
      SEXTANT_CHECK(id >= 0 && id < tokenizer.vocab_size(), "an id beyond the vocabulary");
    if (tokenizer.info().restores_text)
      SEXTANT_CHECK(tokenizer.decode(ids) == x, "decode(encode(x)) is not x");
  }
}

void tokenizer_json(std::string_view text) {
  std::optional<Tokenizer> tokenizer;
  if (accepts([&] { tokenizer.emplace(parse_tokenizer_json(text, "fuzz")); }))
    check_tokenizer(*tokenizer, text);
}

void tiktoken_ranks(std::string_view text) {
  std::optional<Tokenizer> tokenizer;
  if (accepts([&] { tokenizer.emplace(parse_tiktoken_ranks(text, "fuzz")); }))
    check_tokenizer(*tokenizer, text);
}

void data_index(std::string_view text) {
  DataIndex index;
  if (!accepts([&] { index = parse_json(text, "fuzz").get<DataIndex>(); })) return;
  SEXTANT_CHECK(validate(index).empty(), "an unlawful index was accepted");
  check_round_trip(index);
}

namespace {

// A file in memory, for parsers that read files.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    SEXTANT_CHECK(fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
                  "a file in memory");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace

void safetensors(std::string_view bytes) {
  const MemoryFile file(bytes);
  std::optional<SafetensorsFile> read;
  if (!accepts([&] { read.emplace(file.path()); })) return;
  std::size_t all = 0;
  for (const StoredTensor& t : read->tensors()) {
    const auto data = read->bytes(t);
    SEXTANT_CHECK(static_cast<std::int64_t>(data.size()) == t.elements() * size_bytes(t.type), "its shape");
    SEXTANT_CHECK(std::ranges::count_if(data, [](std::byte b) { return b == std::byte{}; }) >= 0, "readable");
    SEXTANT_CHECK(read->find(t.name) == &t, "found by its name");
    all += data.size();
  }
  SEXTANT_CHECK(all + 8 <= bytes.size(), "more data than file");
  if (const auto extents = read->metadata().find("extents"); extents != read->metadata().end())
    accepts([&] { (void)parse_extents(extents->second, "fuzz"); });
}

void sentencepiece(std::string_view bytes) {
  if (!sentencepiece_available()) return;
  std::optional<Tokenizer> tokenizer;
  if (!accepts([&] { tokenizer.emplace(parse_sentencepiece(bytes, "fuzz")); })) return;
  const std::string text = replace_invalid_utf8(bytes.substr(0, 200)) + " as words  and more";
  std::vector<std::int32_t> ids = tokenizer->encode(text);
  for (const std::int32_t id : ids)
    SEXTANT_CHECK(id >= 0 && id < tokenizer->vocab_size(), "an id beyond the vocabulary");
  (void)tokenizer->decode(ids);
}

void token_shard(std::string_view bytes) {
  if (bytes.empty()) return;
  static const TempDir folder;
  const std::size_t documents = std::min<std::size_t>(1 + static_cast<unsigned char>(bytes[0]) % 8,
                                                      (bytes.size() - 1) / sizeof(std::uint64_t));
  if (documents == 0) return;
  const std::string_view ends = bytes.substr(1, documents * sizeof(std::uint64_t)),
                         words = bytes.substr(1 + ends.size())
                                     .substr(0, (bytes.size() - 1 - ends.size()) / 2 * 2);
  if (words.empty()) return;
  const auto place = folder.path() / std::to_string(::getpid());
  const auto of_ends = folder.write(place.filename().string() + ".documents", ends),
             of_words = folder.write(place.filename().string() + ".tokens", words);
  const DataShard shard{place.filename().string(), static_cast<std::int64_t>(words.size() / 2),
                        static_cast<std::int64_t>(documents), "", ""};
  std::optional<TokenRow> row;
  const bool opened = accepts([&] { row.emplace(folder.path(), std::vector{shard, shard}, 2, 300); });
  std::filesystem::remove(of_ends),
      std::filesystem::remove(of_words);  // mapped; a file that is replaced waits for the disk
  if (!opened) return;
  std::int64_t last = 0;
  const bool sound = accepts([&] {
    row->for_each_document([&](std::int64_t begin, std::int64_t end) {
      SEXTANT_CHECK(begin == last && end > begin && end <= row->tokens(), "documents one behind the other");
      last = end;
    });
  });
  std::int64_t begun = 0;
  for (std::int64_t first = 0; first < row->tokens(); first += 5)
    accepts([&] {
      const std::int64_t end = std::min(first + 5, row->tokens());
      row->documents_begun_in(first, end, [&](std::int64_t begin) {
        SEXTANT_CHECK(begin >= first && begin < end, "a document of another window");
        ++begun;
      });
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(end - first));
      row->read(first, tokens);
    });
  SEXTANT_CHECK(!sound || begun == 2 * static_cast<std::int64_t>(documents), "every document begins once");
}

void text_documents(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto how = static_cast<unsigned char>(bytes[0]);
  const MemoryFile file(bytes.substr(1));
  TextInput input{file.path(), static_cast<std::int64_t>(bytes.size() - 1), 0, how % 2 == 1};
  PrepareOptions options;
  options.unit = static_cast<DocumentUnit>(how / 2 % 3);
  options.bad_text = static_cast<BadText>(how / 6 % 3);
  const Tokenizer tokenizer = byte_tokenizer();
  const std::vector<TextInput> inputs = {input};
  accepts([&] {
    TextReader reader(inputs, options.unit, tokenizer);
    const BlockEncoder encoder(tokenizer, options);
    while (const auto block = reader.next()) {
      const EncodedBlock out = encoder.encode(*block);
      const std::size_t tokens =
          std::accumulate(out.parts.begin(), out.parts.end(), std::size_t{0},
                          [](std::size_t sum, const EncodedPart& p) { return sum + p.tokens; });
      SEXTANT_CHECK(tokens == out.ids.size(), "tokens of no document");
      std::string text = tokenizer.decode(out.ids);
      SEXTANT_CHECK(valid_utf8_prefix(text) == text.size(), "what is no text became tokens");
    }
  });
}

}  // namespace sextant::fuzz
