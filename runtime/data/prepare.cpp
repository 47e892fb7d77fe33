#include "runtime/data/prepare.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tbb/parallel_pipeline.h>

#include "core/base/digest.hpp"
#include "core/base/file_io.hpp"
#include "core/base/json_digest.hpp"
#include "core/base/json_io.hpp"
#include "runtime/data/block_encoder.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/data/shuffle.hpp"
#include "runtime/data/token_writer.hpp"
#include "runtime/data/utf8.hpp"
#include "runtime/data/work_folder.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kInFlight = 32;                // blocks between reader and writer
constexpr const char* kJournalDigestKey = "digest";  // of the journal's other fields

// A block between reader and writer.
struct InFlight {
  std::optional<TextBlock> text;
  EncodedBlock encoded;
};

// Where a preparation can go on.
struct Journal {
  std::string settings;  // digest of all that the result depends on
  std::int64_t input = 0, offset = 0, line = 1;
  bool in_document = false;
  std::int64_t documents = 0;  // that have begun
  std::int64_t text_bytes = 0, left_out = 0, empty_inputs = 0;
  std::string first_left_out;
  SplitProgress train, validation;
};
constexpr auto kJournalFields = [](auto& io, auto& j) {
  io.required("settings", j.settings);
  io.required("input", j.input, at_least(0));
  io.required("offset", j.offset, at_least(0));
  io.required("line", j.line, at_least(1));
  io.required("in_document", j.in_document);
  io.required("documents", j.documents, at_least(0));
  io.required("text_bytes", j.text_bytes, at_least(0));
  io.required("left_out", j.left_out, at_least(0));
  io.required("empty_inputs", j.empty_inputs, at_least(0));
  io.required("first_left_out", j.first_left_out);
  io.required("train", j.train);
  io.required("validation", j.validation);
  io.ignored(kJournalDigestKey);
};
void to_json(json& j, const Journal& journal) {
  write_object(j, journal, kJournalFields);
  j[kJournalDigestKey] = digest_without(j, {kJournalDigestKey});
}
void from_json(const json& j, Journal& journal) { read_object(j, journal, kJournalFields); }

std::string settings_digest(const std::vector<TextInput>& inputs, const Tokenizer& t,
                            const PrepareOptions& o) {
  Digest all;
  for (const TextInput& i : inputs)
    all.add(fmt::format("{}\n{} {} {}\n", fs::absolute(i.path).string(), i.bytes, i.modified_ns, i.jsonl));
  const TokenizerInfo& info = t.info();
  all.add(fmt::format("{} {} {} {}\n", info.digest, info.vocab_size, info.bos.value_or(-1),
                      info.eos.value_or(-1)));
  if (!info.bos_in_front) all.add("no bos in front\n");
  all.add(fmt::format("{}\n{} {} {} {} {}", o.field, static_cast<int>(o.unit), static_cast<int>(o.bad_text),
                      o.seed, o.validation_fraction, o.shard_tokens));
  return all.text();
}

// What arrives in order: documents get their number, by it their split, and go to the files.
class Writer {
 public:
  Writer(const fs::path& folder, const Tokenizer& t, const PrepareOptions& o, const Journal& from)
      : folder_(folder),
        info_(t.info()),
        options_(o),
        journal_(from),
        tokens_(folder, token_bytes_of(info_.vocab_size), o.shard_tokens, {from.train, from.validation}) {
    if (journal_.in_document) split_ = split_of(journal_.documents - 1);
  }

  void add(const EncodedBlock& block) {
    std::size_t at = 0;
    for (const EncodedPart& part : block.parts) {
      if (!part.continues) {
        split_ = split_of(journal_.documents++);
        if (info_.bos && info_.bos_in_front) tokens_.add(split_, std::span(&*info_.bos, 1));
      }
      tokens_.add(split_, std::span(block.ids).subspan(at, part.tokens));
      at += part.tokens;
      written_ += static_cast<std::int64_t>(part.tokens);
      if (part.open) continue;
      if (info_.eos) tokens_.add(split_, std::span(&*info_.eos, 1));
      tokens_.end_document(split_);
    }
    journal_.text_bytes += block.text_bytes;
    journal_.empty_inputs += block.empty_input;
    if (journal_.left_out == 0) journal_.first_left_out = block.first_left_out;
    journal_.left_out += block.left_out;
    journal_.input = static_cast<std::int64_t>(block.next.input);
    journal_.offset = block.next.offset;
    journal_.line = block.next.line;
    journal_.in_document = block.next.in_document;
    if (journal_.text_bytes - flushed_ >= options_.flush_bytes) flush();
  }
  void flush() {
    const WriterProgress p = tokens_.flush();
    journal_.train = p[0];
    journal_.validation = p[1];
    write_json_file(folder_ / kJournalFile, journal_);
    flushed_ = journal_.text_bytes;
  }
  void finish() {
    const WriterProgress p = tokens_.finish();
    journal_.train = p[0];
    journal_.validation = p[1];
  }
  const Journal& journal() const { return journal_; }
  std::int64_t written() const { return written_; }

 private:
  DataSplit split_of(std::int64_t document) const {
    const std::uint64_t drawn = scrambled(scrambled(options_.seed, 0), static_cast<std::uint64_t>(document));
    const double unit = static_cast<double>(drawn >> 11) * 0x1p-53;
    return unit < options_.validation_fraction ? DataSplit::validation : DataSplit::train;
  }

  fs::path folder_;
  const TokenizerInfo& info_;
  const PrepareOptions& options_;
  Journal journal_;
  TokenWriter tokens_;
  DataSplit split_ = DataSplit::train;
  std::int64_t written_ = 0, flushed_ = 0;
};

DataIndex index_of(const Journal& journal, const Tokenizer& t, const PrepareOptions& o) {
  const TokenizerInfo& info = t.info();
  DataIndex index;
  index.tokenizer = {.kind = std::string(name(info.kind)),
                     .source = info.source,
                     .digest = info.digest,
                     .vocab_size = info.vocab_size,
                     .bos = info.bos,
                     .eos = info.eos};
  index.token_bytes = token_bytes_of(info.vocab_size);
  index.seed = static_cast<std::int64_t>(o.seed);
  index.validation_fraction = o.validation_fraction;
  index.train = journal.train.closed;
  index.validation = journal.validation.closed;
  return index;
}

// Copies the tokenizer's file into the data set, with what transformers' AutoTokenizer wants to know beside it. Returns its
// name there; nothing for plain bytes, which have no file.
std::string keep_tokenizer(const TokenizerInfo& info, const fs::path& folder) {
  if (info.kind == TokenizerKind::bytes) return "";
  const fs::path source = info.source;
  const bool is_json = info.kind == TokenizerKind::bpe_json;
  std::string file(kTokenizerFiles[is_json ? 0 : 1]);
  const std::string text = read_text_file(source);
  if (digest(text) != info.digest)
    throw ConfigError(Problem{info.source, "", fmt::format("digest {}", digest(text)), info.digest,
                              "the file was changed while it was used"});
  write_file_atomic(folder / file, text);
  const fs::path config = source.parent_path() / kTokenizerConfig;
  if (fs::exists(config)) {
    write_file_atomic(folder / kTokenizerConfig, read_text_file(config));
  } else if (info.kind != TokenizerKind::tiktoken) {  // which transformers reads in its own form only
    json j = {{"tokenizer_class", is_json ? "PreTrainedTokenizerFast" : "LlamaTokenizer"}};
    if (!info.bos_name.empty()) j["bos_token"] = info.bos_name;
    if (!info.eos_name.empty()) j["eos_token"] = info.eos_name;
    // As its documents begin; a tokenizer.json says it itself.
    if (!is_json && info.bos) {
      j["add_bos_token"] = true;
      j["add_eos_token"] = false;
    }
    write_json_file(folder / kTokenizerConfig, j);
  }
  return file;
}

// Whatever an earlier call has left is compared with what it wrote down: nobody reads it again before a run does.
template <class Use>
auto of_an_earlier_call(const fs::path& folder, const Use& use) {
  try {
    return use();
  } catch (const ConfigError& e) {
    auto problems = e.problems();
    std::string& hint = problems.front().hint;
    hint = fmt::format("{}what an earlier call had prepared is damaged: remove {} to begin again",
                       problems.front().expected.empty() ? hint + "; " : "", folder.string());
    throw ConfigError(std::move(problems));
  }
}

Journal read_journal(const fs::path& file) {
  Journal journal;
  with_json_file(file, [&](const json& j) {
    journal = j.get<Journal>();
    if (const auto stated = j.find(kJournalDigestKey);
        stated != j.end() && *stated != digest_without(j, {kJournalDigestKey}))
      throw ConfigError(Problem{"", kJournalDigestKey, "that of other contents", "that of this file", ""});
  });
  return journal;
}

void verify_closed(const fs::path& folder, const Journal& journal, int vocab_size) {
  for (const SplitProgress* p : {&journal.train, &journal.validation})
    TokenRow(folder, p->closed, token_bytes_of(vocab_size), vocab_size).verify();
}

json sources_json(const std::vector<TextInput>& inputs, const Journal& journal) {
  constexpr std::size_t kNamed = 1000;
  json files = json::array();
  for (std::size_t i = 0; i < std::min(kNamed, inputs.size()); ++i)
    files.push_back({{"path", replace_invalid_utf8(inputs[i].path.string())}, {"bytes", inputs[i].bytes}});
  return {{"files", files},
          {"number_of_files", inputs.size()},
          {"text_bytes", journal.text_bytes},
          {"documents_left_out", journal.left_out}};
}

// Where an earlier call with the same settings has stopped; nothing where there was none.
std::optional<Journal> journal_before(const WorkFolder& work, const std::string& settings, int vocab_size) {
  const fs::path file = work.path() / kJournalFile;
  if (!fs::exists(file)) return std::nullopt;
  auto before = of_an_earlier_call(work.path(), [&] { return read_journal(file); });
  if (before.settings != settings)
    throw ConfigError(
        Problem{"--out", "", work.path().string(), "what the same command with the same files has begun",
                "files, tokenizer or options have changed since: remove that folder to begin again"});
  of_an_earlier_call(work.path(), [&] { verify_closed(work.path(), before, vocab_size); });
  return before;
}

// Nothing else that an earlier call has left is of use.
void keep_shards(WorkFolder& work, const Journal& from) {
  std::vector<std::string> known;
  for (const SplitProgress* p : {&from.train, &from.validation}) {
    for (const DataShard& s : p->closed) known.push_back(s.name);
    if (p->tokens > 0)
      known.push_back(shard_name(kDataSplitNames[p == &from.train ? 0 : 1], p->closed.size()));
  }
  work.remove_all_but(known);
}

// All of the reader's text, encoded in parallel and written in its order, or as much as there is before the stop.
// Blocks leave in the order in which they came, so one place of the ring is free for the next. It owns them: the pipeline
// frees nothing of what is under way when an exception ends it.
template <class Written>
void encode_all(TextReader& reader, const BlockEncoder& encoder, const std::atomic<bool>* stop,
                const Written& written) {
  std::vector<InFlight> ring(kInFlight);
  std::size_t begun = 0;
  const auto read = [&](tbb::flow_control& flow) -> InFlight* {
    InFlight& at = ring[begun % kInFlight];
    at.text = stop && stop->load() ? std::nullopt : reader.next();
    if (at.text) {
      ++begun;
      return &at;
    }
    flow.stop();
    return nullptr;
  };
  const auto encode = [&](InFlight* at) {
    at->encoded = encoder.encode(*at->text);
    at->text.reset();
    return at;
  };
  const auto write = [&](InFlight* at) { written(std::exchange(at->encoded, {})); };
  tbb::parallel_pipeline(kInFlight,
                         tbb::make_filter<void, InFlight*>(tbb::filter_mode::serial_in_order, read) &
                             tbb::make_filter<InFlight*, InFlight*>(tbb::filter_mode::parallel, encode) &
                             tbb::make_filter<InFlight*, void>(tbb::filter_mode::serial_in_order, write));
}

// No token is left to train on.
[[noreturn]] void refuse_empty(const std::vector<TextInput>& inputs, const Journal& end) {
  throw ConfigError(
      Problem{inputs.size() == 1 ? inputs[0].path.string() : fmt::format("{} files", inputs.size()), "",
              end.documents == 0 ? "no text" : fmt::format("{} documents, all held out", end.documents),
              "text to train on",
              end.left_out > 0     ? end.first_left_out
              : end.documents == 0 ? ""
                                   : "smaller documents (--document paragraph), or a smaller --validation"});
}

PrepareResult prepare_in(WorkFolder& work, const fs::path& out, const std::vector<TextInput>& inputs,
                         const Tokenizer& tokenizer, const PrepareOptions& o) {
  PrepareResult result;
  Journal from;
  from.settings = settings_digest(inputs, tokenizer, o);
  if (auto before = journal_before(work, from.settings, tokenizer.info().vocab_size)) {
    from = *std::move(before);
    result.resumed = true;
  }
  keep_shards(work, from);

  PrepareProgress progress;
  for (const TextInput& i : inputs) progress.all_bytes += i.bytes;
  TextReader reader(inputs, o.unit, tokenizer,
                    {.input = static_cast<std::size_t>(from.input),
                     .offset = from.offset,
                     .line = from.line,
                     .in_document = from.in_document},
                    o.stop);
  Writer writer = of_an_earlier_call(work.path(), [&] { return Writer(work.path(), tokenizer, o, from); });
  encode_all(reader, BlockEncoder(tokenizer, o), o.stop, [&](const EncodedBlock& block) {
    writer.add(block);
    progress.done_bytes = block.done_bytes;
    progress.tokens = writer.written();
    progress.documents = writer.journal().documents - from.documents;
    if (o.progress) o.progress(progress);
  });

  const Journal& end = writer.journal();
  result.text_bytes = end.text_bytes;
  result.documents_left_out = end.left_out;
  result.first_left_out = end.first_left_out;
  result.empty_inputs = end.empty_inputs;
  if (static_cast<std::size_t>(end.input) < inputs.size()) {
    writer.flush();
    result.stopped = true;
    return result;
  }
  writer.finish();
  result.index = index_of(writer.journal(), tokenizer, o);
  if (result.index.tokens(DataSplit::train) == 0) refuse_empty(inputs, end);
  result.index.tokenizer.file = keep_tokenizer(tokenizer.info(), work.path());
  write_file_atomic(work.path() / kDataIndexFile,
                    data_index_text(result.index, sources_json(inputs, writer.journal())));
  work.commit(out);
  return result;
}

}  // namespace

PrepareResult prepare_data(const std::vector<TextInput>& inputs, const Tokenizer& tokenizer,
                           const PrepareOptions& o) {
  const fs::path out = o.out.has_filename() ? o.out : o.out.parent_path();  // "data/" is "data"
  require_absent(out);
  WorkFolder work(out);
  work.require_own_files();
  try {
    return prepare_in(work, out, inputs, tokenizer, o);
  } catch (const BackendError& e) {
    std::error_code unknown;
    throw BackendError(
        fmt::format("{}\n  {}: give the same command again", e.what(),
                    fs::exists(work.path() / kJournalFile, unknown)
                        ? fmt::format("what was prepared before is kept in {}", work.path().string())
                        : "nothing is kept"));
  }
}

}  // namespace sextant
