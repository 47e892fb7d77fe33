#include "runtime/data/prepare.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <tbb/parallel_pipeline.h>
#include <unistd.h>

#include "core/file_io.hpp"
#include "core/json_io.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/data/digest.hpp"
#include "runtime/data/shuffle.hpp"
#include "runtime/data/token_writer.hpp"
#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kJournalFile = "progress.json";
constexpr const char* kLockFile = "lock";
constexpr std::size_t kInFlight = 32;  // blocks between reader and writer

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
};
void to_json(json& j, const Journal& journal) { write_object(j, journal, kJournalFields); }
void from_json(const json& j, Journal& journal) { read_object(j, journal, kJournalFields); }

std::string settings_digest(const std::vector<TextInput>& inputs, const Tokenizer& t,
                            const PrepareOptions& o) {
  DataDigest all;
  for (const TextInput& i : inputs)
    all.add(fmt::format("{}\n{} {} {}\n", fs::absolute(i.path).string(), i.bytes, i.modified_ns, i.jsonl));
  const TokenizerInfo& info = t.info();
  all.add(fmt::format("{} {} {} {}\n", info.digest, info.vocab_size, info.bos.value_or(-1),
                      info.eos.value_or(-1)));
  all.add(fmt::format("{}\n{} {} {} {} {}", o.field, static_cast<int>(o.unit), static_cast<int>(o.bad_text),
                      o.seed, o.validation_fraction, o.shard_tokens));
  return all.text();
}

// OUT.partial, held by one process at a time.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& out) : path_(out.string() + ".partial") {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error)
      throw ConfigError(Problem{"--out", "", path_.string(), "a folder that can be made", error.message()});
    lock_ = ::open((path_ / kLockFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0)
      throw ConfigError(
          Problem{"--out", "", path_.string(), "a folder one may write to", std::strerror(errno)});
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0)
      throw ConfigError(Problem{"--out", "", path_.string(), "a folder that nobody else works in",
                                "another sextant data is making this data set"});
  }
  // What nothing could go on from is not left behind.
  ~WorkFolder() {
    std::error_code ignored;
    if (!committed_ && !fs::exists(path_ / kJournalFile, ignored)) {
      remove_all_but({});
      fs::remove(path_ / kLockFile, ignored);
      fs::remove(path_, ignored);
    }
    ::close(lock_);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const fs::path& path() const { return path_; }
  // Empty of all but our own files; removes nothing that could be somebody's.
  void require_own_files() const {
    for (const auto& entry : fs::directory_iterator(path_)) {
      const fs::path name = entry.path().filename();
      if (name != kLockFile && !name.string().starts_with(kJournalFile) && name.extension() != ".tokens" &&
          name.extension() != ".documents")
        throw ConfigError(
            Problem{"--out", "", entry.path().string(), "a folder with nothing else in it", ""});
    }
  }
  // Removes token files that do not belong to these shards: of what was not flushed before a kill.
  void remove_all_but(const std::vector<std::string>& shards) const {
    std::error_code ignored;
    std::vector<fs::path> others;
    for (const auto& entry : fs::directory_iterator(path_, ignored)) {
      const fs::path& file = entry.path();
      const bool ours =
          file.extension() == ".tokens" || file.extension() == ".documents" ||
          (file.filename().string().starts_with(kJournalFile) && file.filename() != kJournalFile);
      if (ours && std::ranges::find(shards, file.stem().string()) == shards.end()) others.push_back(file);
    }
    for (const fs::path& file : others) fs::remove(file, ignored);
  }
  void commit(const fs::path& out) {
    fs::remove(path_ / kJournalFile);
    fs::remove(path_ / kLockFile);
    sync(path_);
    std::error_code error;
    fs::rename(path_, out, error);
    if (error)
      throw BackendError(
          fmt::format("{}: cannot be renamed to {}: {}", path_.string(), out.string(), error.message()));
    committed_ = true;
    sync(out.has_parent_path() ? out.parent_path() : fs::path("."));
  }

 private:
  static void sync(const fs::path& folder) {
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)::fsync(fd);
    ::close(fd);
  }
  fs::path path_;
  int lock_ = -1;
  bool committed_ = false;
};

struct EncodedPart {
  std::size_t tokens = 0;
  bool continues = false, open = false;
};

struct EncodedBlock {
  std::vector<std::int32_t> ids;
  std::vector<EncodedPart> parts;
  std::int64_t text_bytes = 0, left_out = 0;
  std::string first_left_out;
  bool empty_input = false;
  TextPosition next;
  std::int64_t done_bytes = 0;
};

class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const PrepareOptions& options) : tokenizer_(tokenizer), o_(options) {}

  EncodedBlock encode(const TextBlock& block) const {
    EncodedBlock out;
    out.next = block.next, out.done_bytes = block.done_bytes;
    out.empty_input = block.text.empty() && !block.continues;
    for (const DocumentSlice& slice : documents_of(block, o_.unit)) {
      std::string held;
      std::string_view text = slice.text;
      try {
        if (block.input->jsonl) text = held = field_of(block, slice);
        check(block, slice, text, held);
      } catch (const ConfigError& e) {
        if (o_.bad_text == BadText::stop) throw;
        if (slice.continues || slice.open)
          throw ConfigError(Problem{block.input->path.string(), "", "a document too long to be left out",
                                    "--bad-text stop, or replace for what is no UTF-8", e.what()});
        if (out.left_out++ == 0) out.first_left_out = e.what();
        continue;
      }
      const std::size_t before = out.ids.size();
      tokenizer_.encode(text, out.ids);
      out.text_bytes += static_cast<std::int64_t>(text.size());
      if (out.ids.size() > before || slice.continues || slice.open)
        out.parts.push_back({out.ids.size() - before, slice.continues, slice.open});
    }
    return out;
  }

 private:
  [[noreturn]] static void refuse(const TextBlock& block, std::int64_t line, std::string key,
                                  std::string found, std::string expected, std::string hint = "") {
    throw ConfigError(Problem{fmt::format("{}:{}", block.input->path.string(), line), std::move(key),
                              std::move(found), std::move(expected), std::move(hint)});
  }

  std::string field_of(const TextBlock& block, const DocumentSlice& slice) const {
    if (valid_utf8_prefix(slice.text) < slice.text.size() && o_.bad_text != BadText::replace)
      refuse(block, slice.line, "", "bytes that are no UTF-8", "a line of JSON in UTF-8", kBadTextHint);
    json value;
    try {
      value = json::parse(o_.bad_text == BadText::replace ? replace_invalid_utf8(slice.text)
                                                          : std::string(slice.text));
    } catch (const json::exception& e) {
      const std::string why = e.what();
      refuse(block, slice.line, "", fmt::format("'{}'", replace_invalid_utf8(slice.text.substr(0, 40))),
             "a line of JSON", why.substr(std::min(why.size(), why.find("parse error"))));
    }
    if (!value.is_object()) refuse(block, slice.line, "", value.type_name(), "a JSON object on each line");
    const auto found = value.find(o_.field);
    if (found == value.end()) {
      std::vector<std::string> keys;
      for (const auto& [key, ignored] : value.items()) keys.push_back(key);
      std::string others;
      for (const auto& key : keys) others += (others.empty() ? "" : ", ") + key;
      refuse(block, slice.line, o_.field, "missing", "the text of the document",
             fmt::format("the line has: {}; name the field with --field", others));
    }
    if (!found->is_string()) refuse(block, slice.line, o_.field, found->type_name(), "a string");
    return found->get<std::string>();
  }

  void check(const TextBlock& block, const DocumentSlice& slice, std::string_view& text,
             std::string& held) const {
    const auto line_of = [&](std::size_t at) {
      if (block.input->jsonl) return slice.line;
      return slice.line + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    };
    if (const void* nul = text.empty() ? nullptr : std::memchr(text.data(), 0, text.size())) {
      const auto at = static_cast<std::size_t>(static_cast<const char*>(nul) - text.data());
      refuse(block, line_of(at), "", "a NUL byte", "text", "is this a binary file?");
    }
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid == text.size()) return;
    if (o_.bad_text != BadText::replace)
      refuse(block, line_of(valid), "",
             fmt::format("byte 0x{:02x}, which is no UTF-8 there", static_cast<unsigned char>(text[valid])),
             "text in UTF-8", kBadTextHint);
    text = held = replace_invalid_utf8(text);
  }

  static constexpr const char* kBadTextHint =
      "convert it (iconv -t UTF-8), or give --bad-text skip or replace";
  const Tokenizer& tokenizer_;
  const PrepareOptions& o_;
};

// What arrives in order: documents get their number, by it their split, and go to the files.
class Writer {
 public:
  Writer(const fs::path& folder, const Tokenizer& t, const PrepareOptions& o, const Journal& from)
      : folder_(folder),
        info_(t.info()),
        o_(o),
        journal_(from),
        tokens_(folder, token_bytes_of(info_.vocab_size), o.shard_tokens, {from.train, from.validation}) {
    if (journal_.in_document) split_ = split_of(journal_.documents - 1);
  }

  void add(const EncodedBlock& block) {
    std::size_t at = 0;
    for (const EncodedPart& part : block.parts) {
      if (!part.continues) {
        split_ = split_of(journal_.documents++);
        if (info_.bos) tokens_.add(split_, std::span(&*info_.bos, 1));
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
    journal_.offset = block.next.offset, journal_.line = block.next.line;
    journal_.in_document = block.next.in_document;
    if (journal_.text_bytes - flushed_ >= o_.flush_bytes) flush();
  }
  void flush() {
    const WriterProgress p = tokens_.flush();
    journal_.train = p[0], journal_.validation = p[1];
    write_json_file(folder_ / kJournalFile, journal_);
    flushed_ = journal_.text_bytes;
  }
  void finish() {
    const WriterProgress p = tokens_.finish();
    journal_.train = p[0], journal_.validation = p[1];
  }
  const Journal& journal() const { return journal_; }
  std::int64_t written() const { return written_; }

 private:
  DataSplit split_of(std::int64_t document) const {
    const std::uint64_t drawn = scrambled(scrambled(o_.seed, 0), static_cast<std::uint64_t>(document));
    const double unit = static_cast<double>(drawn >> 11) * 0x1p-53;
    return unit < o_.validation_fraction ? DataSplit::validation : DataSplit::train;
  }

  fs::path folder_;
  const TokenizerInfo& info_;
  const PrepareOptions& o_;
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
  index.train = journal.train.closed, index.validation = journal.validation.closed;
  return index;
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

void require_absent(const fs::path& out) {
  if (fs::exists(fs::symlink_status(out)))
    throw ConfigError(Problem{"--out", "", out.string(), "a folder that is not there yet",
                              "nothing is overwritten: name another, or remove it"});
}

}  // namespace

PrepareResult prepare_data(const std::vector<TextInput>& inputs, const Tokenizer& tokenizer,
                           const PrepareOptions& o) {
  const fs::path out = o.out.has_filename() ? o.out : o.out.parent_path();  // "data/" is "data"
  require_absent(out);
  WorkFolder work(out);
  work.require_own_files();
  PrepareResult result;
  Journal from;
  from.settings = settings_digest(inputs, tokenizer, o);
  if (fs::exists(work.path() / kJournalFile)) {
    const auto before = load_json<Journal>(work.path() / kJournalFile);
    if (before.settings != from.settings)
      throw ConfigError(
          Problem{"--out", "", work.path().string(), "what the same command with the same files has begun",
                  "files, tokenizer or options have changed since: remove that folder to begin again"});
    from = before;
    result.resumed = true;
  }
  std::vector<std::string> known;
  for (const SplitProgress* p : {&from.train, &from.validation}) {
    for (const DataShard& s : p->closed) known.push_back(s.name);
    if (p->tokens > 0)
      known.push_back(shard_name(kDataSplitNames[p == &from.train ? 0 : 1], p->closed.size()));
  }
  work.remove_all_but(known);

  PrepareProgress progress;
  for (const TextInput& i : inputs) progress.all_bytes += i.bytes;
  TextReader reader(inputs, o.unit, tokenizer,
                    {.input = static_cast<std::size_t>(from.input),
                     .offset = from.offset,
                     .line = from.line,
                     .in_document = from.in_document});
  Writer writer(work.path(), tokenizer, o, from);
  const Encoder encoder(tokenizer, o);
  tbb::parallel_pipeline(
      kInFlight, tbb::make_filter<void, std::shared_ptr<TextBlock>>(
                     tbb::filter_mode::serial_in_order,
                     [&](tbb::flow_control& flow) -> std::shared_ptr<TextBlock> {
                       auto block = o.stop && o.stop->load() ? std::nullopt : reader.next();
                       if (block) return std::make_shared<TextBlock>(std::move(*block));
                       flow.stop();
                       return nullptr;
                     }) &
                     tbb::make_filter<std::shared_ptr<TextBlock>, std::shared_ptr<EncodedBlock>>(
                         tbb::filter_mode::parallel,
                         [&](const std::shared_ptr<TextBlock>& block) {
                           return std::make_shared<EncodedBlock>(encoder.encode(*block));
                         }) &
                     tbb::make_filter<std::shared_ptr<EncodedBlock>, void>(
                         tbb::filter_mode::serial_in_order, [&](const std::shared_ptr<EncodedBlock>& block) {
                           writer.add(*block);
                           progress.done_bytes = block->done_bytes;
                           progress.tokens = writer.written(),
                           progress.documents = writer.journal().documents - from.documents;
                           if (o.progress) o.progress(progress);
                         }));

  const Journal& end = writer.journal();
  result.text_bytes = end.text_bytes;
  result.documents_left_out = end.left_out, result.first_left_out = end.first_left_out;
  result.empty_inputs = end.empty_inputs;
  if (static_cast<std::size_t>(end.input) < inputs.size()) {
    writer.flush();
    result.stopped = true;
    return result;
  }
  writer.finish();
  result.index = index_of(writer.journal(), tokenizer, o);
  if (result.index.tokens(DataSplit::train) == 0)
    throw ConfigError(Problem{
        inputs.size() == 1 ? inputs[0].path.string() : fmt::format("{} files", inputs.size()), "",
        end.documents == 0 ? "no text" : fmt::format("{} documents, all held out", end.documents),
        "text to train on",
        end.left_out > 0     ? end.first_left_out
        : end.documents == 0 ? ""
                             : "smaller documents (--document paragraph), or a smaller --validation"});
  json index = result.index;
  index["made_from"] = sources_json(inputs, writer.journal());
  write_json_file(work.path() / kDataIndexFile, index);
  work.commit(out);
  return result;
}

}  // namespace sextant
