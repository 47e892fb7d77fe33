// `sextant weights`: what a checkpoint folder holds, and checkpoints written in Hugging Face form.
#include <algorithm>
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/data/data_index.hpp"
#include "runtime/weights/hugging_face.hpp"
#include "runtime/weights/hugging_face_export.hpp"
#include "tools/inputs/weights.hpp"
#include "tools/terminal/progress.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

struct WeightsOptions {
  std::vector<std::string> words;
  std::string out, dtype = "same";
  double max_shard_GB = 5;
  int step = -1;
};

std::string type_text(const std::optional<StoredType>& type) {
  return type ? std::string(name(*type)) : "mixed";
}

ExitCode show(Session& session, const std::string& from) {
  const HuggingFaceFolder folder(from);
  const WeightInventory found = folder.check();
  const ModelSpec& m = folder.model();
  if (session.common.json) {
    print_json(session, "weights.show",
               {{"folder", from},
                {"model", nlohmann::json(m)},
                {"parameters", found.parameters},
                {"tensors", found.tensors},
                {"shards", found.shards},
                {"bytes", found.bytes},
                {"dtype", type_text(found.type)}});
    return ExitCode::ok;
  }
  session.terminal.out << wrapped_answer(
                              session.terminal,
                              fmt::format(
                                  "{}: {:.3g} B parameters in {} tensors, {} file{}, {:.3g} GB in {}\n"
                                  "{} layers, hidden {}, {} heads ({} for keys and values), "
                                  "vocabulary {}{}",
                                  m.name, static_cast<double>(found.parameters) / 1e9, found.tensors,
                                  found.shards, found.shards == 1 ? "" : "s",
                                  static_cast<double>(found.bytes) / 1e9, type_text(found.type), m.n_layers,
                                  m.hidden, m.n_heads, m.n_kv_heads, m.vocab_size,
                                  m.tied_embeddings ? ", embeddings tied" : ""))
                       << fmt::format(
                              "\nnext: sextant plan --model {0} --cluster ... --stack sextant -o plan.json\n"
                              "      sextant run plan.json --init {0}\n",
                              from);
  return ExitCode::ok;
}

StoredType type_for(const std::string& word, const std::optional<StoredType>& found) {
  if (word != "same") return stored_type(*dtype_from_name(word));
  if (!found) throw UsageError("the tensors have several formats: name one with --dtype bf16, fp16 or fp32");
  return *found;
}

ExitCode export_weights(Session& session, const std::string& from, const WeightsOptions& o) {
  if (o.out.empty()) throw UsageError("--out names the folder to write");
  const OpenedWeights source = open_weights(from, o.step);
  const StoredType type = type_for(o.dtype, source.type);
  Progress progress(session.terminal, "writing", 0, "GB");
  const ExportedWeights done =
      export_hugging_face(source.model, source.weights, o.out,
                          {.type = type,
                           .max_shard_bytes = static_cast<std::uint64_t>(o.max_shard_GB * 1e9),
                           .like = source.like,
                           .progress = [&](std::uint64_t bytes, std::uint64_t) {
                             progress.update(static_cast<double>(bytes) / 1e9);
                           }});
  progress.finish();
  if (session.common.json) {
    print_json(session, "weights.export",
               {{"from", from},
                {"out", o.out},
                {"dtype", name(type)},
                {"tensors", done.tensors},
                {"bytes", done.bytes},
                {"files", done.files}});
    return ExitCode::ok;
  }
  const auto tell = [&](const std::string& what) {
    session.terminal.out << wrapped_answer(session.terminal, what);
  };
  tell(fmt::format("written: {}: {} tensors, {:.3f} GB in {}, {} files", o.out, done.tensors,
                   static_cast<double>(done.bytes) / 1e9, name(type), done.files.size()));
  if (o.dtype == "same" && !source.why_type.empty()) tell(fmt::format("{}: {}", name(type), source.why_type));
  const auto has = [&](std::string_view file) {
    return std::ranges::find(done.files, file) != done.files.end();
  };
  if (std::ranges::none_of(kTokenizerFiles, has) && source.tokenizer == "bytes")
    tell(fmt::format(
        "no tokenizer: the data was plain bytes, which no file describes; sextant sample {} --tokenizer "
        "bytes",
        o.out));
  else if (has("tokenizer.model") && !has("tokenizer.json") && !has(kTokenizerConfig))
    tell("tokenizer.model holds ranks as Meta ships them, which transformers does not load");
  tell(fmt::format("next: in Python, transformers.AutoModelForCausalLM.from_pretrained(\"{}\")", o.out));
  return ExitCode::ok;
}

ExitCode run(Session& session, const WeightsOptions& o) {
  if (o.words.empty()) throw UsageError("expected: show HF_DIR, or export FROM --out HF_DIR");
  if (o.words[0] != "show" && o.words[0] != "export") {
    const std::string near = closest(o.words[0], {"show", "export"});
    throw UsageError(fmt::format("'{}' is not something to do with weights: expected show or export{}",
                                 o.words[0], near.empty() ? "" : fmt::format("\n  did you mean {}?", near)));
  }
  if (o.words.size() != 2) throw UsageError(fmt::format("{} needs the name of one folder", o.words[0]));
  if (o.words[0] == "show") return show(session, o.words[1]);
  return export_weights(session, o.words[1], o);
}

}  // namespace

Verb weights_verb() {
  return {
      .name = "weights",
      .summary = "check a Hugging Face checkpoint, or export one",
      .description =
          "show: reads config.json and the header of every safetensors file of a folder and reports what is "
          "there; whatever does not fit together is named by file and tensor. export: writes a folder that "
          "transformers loads unchanged, tensor by tensor, from the newest checkpoint of a run or from such "
          "a folder. The same format gives the same bits. Of a checkpoint the weights are read and compared "
          "with their digests, and no optimizer state.",
      .examples = {{"the newest checkpoint of a run, for transformers",
                    "sextant weights export tiny-run --out tiny-hf --dtype bf16"},
                   {"an earlier one, that was kept", "sextant weights export saved-run --step 4 --out at-4"},
                   {"what a folder holds", "sextant weights show tiny-hf"}},
      .define = [](CLI::App& app) -> Run {
        auto o = std::make_shared<WeightsOptions>();
        app.add_option("what", o->words, "show HF_DIR, or export FROM")->type_name("WHAT");
        add_text(app, {.flag = "--out", .metavar = "DIR", .text = "folder to write; absent or empty"},
                 o->out);
        add_step_option(app, o->step);
        add_text(app,
                 {.flag = "--dtype",
                  .metavar = "same|bf16|fp16|fp32|fp64",
                  .text = "number format to write; same: of the folder, or of what the run started from"},
                 o->dtype);
        add_number(app,
                   {.flag = "--max-shard-size",
                    .metavar = "GB",
                    .text = "largest file, unless one tensor is larger",
                    .unit = "GB",
                    .min = 1e-9,
                    .max = 1e6},
                   o->max_shard_GB);
        return [o](Session& session) { return run(session, *o); };
      }};
}

}  // namespace sextant
