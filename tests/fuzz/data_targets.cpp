// Data sets, tokenizers, weights and checkpoints.
#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include "core/base/safetensors.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "runtime/data/block_encoder.hpp"
#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/data/sentencepiece_tokenizer.hpp"
#include "runtime/data/utf8.hpp"
#include "runtime/weights/weight_index.hpp"
#include "tests/fuzz/checks.hpp"
#include "tests/fuzz/targets.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::fuzz {

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

void data_index(std::string_view text) { (void)lawful_json<DataIndex>(text); }

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
  std::filesystem::remove(of_ends);
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
