// `sextant data`: texts to the token shards that `sextant run --data` trains on.
#include <algorithm>
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/digest.hpp"
#include "core/base/file_io.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/data/prepare.hpp"
#include "tools/terminal/interrupt.hpp"
#include "tools/terminal/progress.hpp"
#include "tools/terminal/table.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

struct DataVerbOptions {
  std::vector<std::string> texts;
  std::string tokenizer, out, check, field = "text", document = "file", bad_text = "stop";
  double validation = 0.01, shard_tokens = 1 << 28;
  int seed = 1;
};

template <std::size_t N>
std::size_t index_of(const std::array<std::string_view, N>& names, const std::string& name) {
  return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
}

Json index_json(const DataIndex& index) {
  Json splits;
  for (const DataSplit s : {DataSplit::train, DataSplit::validation})
    splits[std::string(kDataSplitNames[static_cast<std::size_t>(s)])] = {
        {"shards", index.shards(s).size()}, {"documents", index.documents(s)}, {"tokens", index.tokens(s)}};
  const DataTokenizer& t = index.tokenizer;
  const auto token = [](const std::optional<std::int32_t>& id) { return id ? Json(*id) : Json(nullptr); };
  return {{"digest", index.digest()},
          {"tokenizer",
           {{"kind", t.kind},
            {"source", t.source},
            {"digest", t.digest},
            {"vocab_size", t.vocab_size},
            {"bos", token(t.bos)},
            {"eos", token(t.eos)}}},
          {"token_bytes", index.token_bytes},
          {"splits", splits}};
}

void print_index(Session& session, const DataIndex& index) {
  Table table({{"split", Align::left},
               {"documents", Align::right},
               {"tokens", Align::right},
               {"shards", Align::right},
               {"MB", Align::right}});
  for (const DataSplit s : {DataSplit::train, DataSplit::validation})
    table.add_row({std::string(kDataSplitNames[static_cast<std::size_t>(s)]),
                   fmt::format("{}", index.documents(s)), fmt::format("{}", index.tokens(s)),
                   fmt::format("{}", index.shards(s).size()),
                   fmt::format("{:.3g}", static_cast<double>(index.tokens(s) * index.token_bytes) / 1e6)});
  session.terminal.out
      << table.render(session.terminal, session.common.wide)
      << fmt::format("\n{} tokenizer, vocabulary of {}, {} bytes a token\ndigest of the data set: {}\n",
                     index.tokenizer.kind, index.tokenizer.vocab_size, index.token_bytes, index.digest());
}

ExitCode check_data(Session& session, const DataVerbOptions& o) {
  if (!o.texts.empty() || !o.tokenizer.empty() || !o.out.empty())
    throw UsageError("--check looks at a data set that is there; TEXT, --tokenizer and --out make one");
  const DataSet data(o.check);
  {
    Progress progress(session.terminal, "reading", static_cast<double>(data.bytes()) / 1e6, "MB");
    std::int64_t done = 0;
    for (const DataSplit s : {DataSplit::train, DataSplit::validation})
      data.row(s).verify([&](std::int64_t n) { progress.update(static_cast<double>(done += n) / 1e6); });
  }
  const DataTokenizer& t = data.index().tokenizer;
  if (const auto file = data.folder() / t.file; !t.file.empty())
    if (const std::string found = digest(read_text_file(file)); found != t.digest)
      throw ConfigError(Problem{file.string(), "", fmt::format("digest {}", found),
                                fmt::format("{}, as the index states", t.digest),
                                "the file was changed, or is damaged"});
  if (session.common.json) {
    Json answer = index_json(data.index());
    answer["whole"] = true;
    print_json(session, "data", answer);
  } else {
    print_index(session, data.index());
    session.terminal.out << "every byte matches the index\n";
  }
  return ExitCode::ok;
}

void print_result(Session& session, const DataVerbOptions& o, const PrepareResult& result, double seconds) {
  auto& out = session.terminal.out;
  if (result.resumed) out << "resumed what an earlier call had begun\n";
  print_index(session, result.index);
  const auto tokens =
      static_cast<double>(result.index.tokens(DataSplit::train) + result.index.tokens(DataSplit::validation));
  out << fmt::format("{:.3g} MB of text, {:.2f} bytes a token, {:.1f} s\n",
                     static_cast<double>(result.text_bytes) / 1e6,
                     static_cast<double>(result.text_bytes) / std::max(1.0, tokens), seconds);
  if (result.documents_left_out > 0)
    out << wrapped_answer(session.terminal, fmt::format("left out: {} documents; the first: {}",
                                                        result.documents_left_out, result.first_left_out));
  if (result.empty_inputs > 0) out << fmt::format("without text: {} files\n", result.empty_inputs);
  if (o.validation > 0 && result.index.tokens(DataSplit::validation) == 0)
    out << wrapped_answer(session.terminal,
                          "no document was held out: more of them (--document paragraph), or a larger "
                          "--validation, give a validation split");
  out << fmt::format("written: {0}\nnext: sextant run plan.json --data {0}\n", o.out);
}

ExitCode make(Session& session, const DataVerbOptions& o) {
  if (o.texts.empty())
    throw UsageError("TEXT is missing\n  for example: sextant data book.txt --tokenizer bytes --out tokens");
  if (o.tokenizer.empty())
    throw UsageError(
        "--tokenizer is missing\n  for example: --tokenizer tokenizer.model, or --tokenizer bytes");
  if (o.out.empty()) throw UsageError("--out is missing\n  for example: --out tokens");
  const Tokenizer tokenizer = load_tokenizer(o.tokenizer);
  const auto inputs = find_texts(o.texts);

  const InterruptGuard interrupt;
  PrepareOptions options;
  options.out = o.out;
  options.field = o.field;
  options.unit = static_cast<DocumentUnit>(index_of(kDocumentUnitNames, o.document));
  options.bad_text = static_cast<BadText>(index_of(kBadTextNames, o.bad_text));
  options.seed = static_cast<std::uint64_t>(o.seed);
  options.validation_fraction = o.validation;
  options.shard_tokens = static_cast<std::int64_t>(o.shard_tokens);
  options.stop = &interrupt.stopped();

  const auto start = std::chrono::steady_clock::now();
  PrepareResult result;
  {
    double all = 0;
    for (const TextInput& i : inputs) all += static_cast<double>(i.bytes) / 1e6;
    Progress progress(session.terminal, "encoding", all, "MB");
    options.progress = [&](const PrepareProgress& p) {
      progress.update(static_cast<double>(p.done_bytes) / 1e6,
                      fmt::format("{:.3g} M tokens", static_cast<double>(p.tokens) / 1e6));
    };
    result = prepare_data(inputs, tokenizer, options);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (result.stopped) {
    session.terminal.err << wrapped_message(
        session.terminal,
        fmt::format("stopped: what is done is in {}.partial; the same command resumes from there", o.out));
    return ExitCode::interrupted;
  }
  if (!session.common.json) {
    print_result(session, o, result, seconds);
    return ExitCode::ok;
  }
  Json answer = index_json(result.index);
  answer["out"] = o.out;
  answer["text_bytes"] = result.text_bytes;
  answer["documents_left_out"] = result.documents_left_out;
  answer["first_left_out"] = result.first_left_out.empty() ? Json(nullptr) : Json(result.first_left_out);
  answer["empty_files"] = result.empty_inputs;
  answer["resumed"] = result.resumed;
  answer["time_s"] = seconds;
  print_json(session, "data", answer);
  return ExitCode::ok;
}

Run define_data(CLI::App& app) {
  auto o = std::make_shared<DataVerbOptions>();
  app.add_option("texts", o->texts, "text files, JSONL files, folders of them, or patterns")
      ->type_name("TEXT");
  add_text(app,
           {.flag = "--tokenizer",
            .metavar = "FILE|bytes",
            .text = "LLaMA's tokenizer.model or tokenizer.json, or the folder that has it; bytes: each "
                    "byte is a token"},
           o->tokenizer);
  add_text(app, {.flag = "--out", .metavar = "DIR", .text = "folder to make; one that is there is refused"},
           o->out);
  add_text(app, {.flag = "--field", .metavar = "KEY", .text = "field of a JSONL line that holds the text"},
           o->field);
  add_text(app,
           {.flag = "--document",
            .metavar = "file|paragraph|line",
            .text = "what one document is in a plain text; of JSONL it is a line"},
           o->document);
  add_number(app,
             {.flag = "--validation",
              .metavar = "X",
              .text = "share of the documents that is held out, drawn by --seed",
              .min = 0,
              .max = 0.999},
             o->validation);
  add_number(app, {.flag = "--seed", .metavar = "N", .text = "of the split", .min = 0, .max = 2147483647},
             o->seed);
  add_text(app,
           {.flag = "--bad-text",
            .metavar = "stop|skip|replace",
            .text = "a document that is no text or a bad line: end, leave it out, or put U+FFFD for "
                    "what is no UTF-8"},
           o->bad_text);
  add_number(app,
             {.flag = "--shard-tokens",
              .metavar = "N",
              .text = "tokens after which a shard ends with its document",
              .min = 1,
              .max = 1e12},
             o->shard_tokens);
  add_text(app,
           {.flag = "--check", .metavar = "DIR", .text = "compare a data set with its index, byte for byte"},
           o->check);
  return [o](Session& session) { return o->check.empty() ? make(session, *o) : check_data(session, *o); };
}

}  // namespace

Verb data_verb() {
  return {
      .name = "data",
      .summary = "turn texts into tokens to train on",
      .description =
          "Encodes text files and JSONL (both also gzipped, of any size, from files, folders and patterns) "
          "with a "
          "tokenizer and writes a data set: shards of tokens, the ends of documents, and an index. A share "
          "of the "
          "documents is held out for validation. A stopped or killed command resumes where it was when it is "
          "given "
          "again; nothing is ever overwritten. docs/data.md describes the files.",
      .examples =
          {{"some text to learn", "sextant plan --help > help.txt"},
           {"its bytes as tokens, every paragraph a document, a tenth of them held out",
            "sextant data help.txt --tokenizer bytes --document paragraph --validation 0.1 --out tokens"},
           {"are they still whole?", "sextant data --check tokens"}},
      .define = define_data};
}

}  // namespace sextant
