// `sextant sample`: a continuation of a text, to look at a checkpoint.
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/cpu/cpu_kernels.hpp"
#include "runtime/data/tokenizer.hpp"
#include "runtime/data/utf8.hpp"
#include "runtime/weights/sampling.hpp"
#include "tools/inputs/machine.hpp"
#include "tools/inputs/weights.hpp"
#include "tools/terminal/interrupt.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

struct SampleOptions {
  std::string from, prompt, tokenizer, dtype = "fp32";
  int max_tokens = 64, seed = 1, threads = 0, step = -1;
  double temperature = 0.8, top_p = 0.95;
};

// What a model wrote, fit for a terminal: no control characters but line feed and tab.
std::string printable(std::string text) {
  std::erase_if(text, [](unsigned char c) { return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f; });
  return text;
}

// Text as it grows: a character is shown when its last byte has come.
class Written {
 public:
  Written(std::ostream* out, const Tokenizer& tokenizer, std::vector<std::int32_t> prompt)
      : out_(out), tokenizer_(tokenizer), tokens_(std::move(prompt)) {
    show(false);
  }
  void add(std::int32_t token) {
    tokens_.push_back(token);
    show(false);
  }
  void end() { show(true); }
  std::string text() const { return tokenizer_.decode(tokens_); }

 private:
  void show(bool all) {
    if (!out_) return;
    const std::string text = tokenizer_.decode(tokens_);
    std::size_t end = text.size();
    if (const std::size_t valid = valid_utf8_prefix(text); !all && text.size() - valid < 4) end = valid;
    if (end <= shown_) return;
    *out_ << printable(replace_invalid_utf8(text.substr(shown_, end - shown_))) << std::flush;
    shown_ = end;
  }
  std::ostream* out_;
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> tokens_;
  std::size_t shown_ = 0;
};

Tokenizer tokenizer_for(const SampleOptions& o, const OpenedWeights& from) {
  const auto load = [&]() -> Tokenizer {
    if (!o.tokenizer.empty()) return load_tokenizer(o.tokenizer);
    for (const char* file : {"tokenizer.json", "tokenizer.model"}) {
      std::error_code none;
      if (!from.like.empty() && std::filesystem::exists(from.like / file, none))
        return load_tokenizer((from.like / file).string());
    }
    if (!from.tokenizer.empty()) return load_tokenizer(from.tokenizer);
    throw UsageError(
        "there is no tokenizer beside the weights\n  for example: --tokenizer tokenizer.json, or --tokenizer "
        "bytes");
  };
  Tokenizer tokenizer = load();
  if (tokenizer.vocab_size() > from.model.vocab_size)
    throw ConfigError(Problem{tokenizer.info().source, "vocabulary",
                              fmt::format("{} tokens", tokenizer.vocab_size()),
                              fmt::format("at most the {} of {}", from.model.vocab_size, from.what),
                              "the tokenizer belongs to another model"});
  return tokenizer;
}

ExitCode run(Session& session, const SampleOptions& o) {
  if (o.from.empty())
    throw UsageError(
        "the weights are missing\n  for example: sextant sample HF_DIR --prompt 'Once upon a time'");
  const OpenedWeights from = open_weights(o.from, o.step);
  const Tokenizer tokenizer = tokenizer_for(o, from);
  std::vector<std::int32_t> prompt;
  if (tokenizer.info().bos && tokenizer.info().bos_in_front) prompt.push_back(*tokenizer.info().bos);
  tokenizer.encode(o.prompt, prompt);
  if (prompt.empty())
    throw UsageError("--prompt is empty, and the tokenizer has no token that begins a text");
  const std::int64_t longest = from.model.max_positions;
  if (static_cast<std::int64_t>(prompt.size()) > longest)
    throw ConfigError(Problem{"--prompt", "", fmt::format("{} tokens", prompt.size()),
                              fmt::format("at most the {} positions of the model", longest), ""});
  const std::int64_t capacity =
      std::min<std::int64_t>(longest, static_cast<std::int64_t>(prompt.size()) + o.max_tokens);
  LlamaForward model(from.model, cpu_kernels(), *dtype_from_name(o.dtype), from.weights, capacity,
                     o.threads > 0 ? o.threads : inspect_machine().cpu_threads);

  const InterruptGuard interrupt;
  const bool text_now = !session.common.json;
  Written written(text_now ? &session.terminal.out : nullptr, tokenizer, prompt);
  std::vector<std::int32_t> end;
  if (tokenizer.info().eos) end.push_back(*tokenizer.info().eos);
  const Continuation made = continue_text(
      model, prompt, o.max_tokens,
      {.temperature = o.temperature, .top_p = o.top_p, .seed = static_cast<std::uint64_t>(o.seed)}, end,
      [&](std::int32_t token) {
        written.add(token);
        return !interrupt.stopped().load();
      });
  written.end();
  if (session.common.json) {
    print_json(session, "sample",
               {{"from", o.from},
                {"prompt", o.prompt},
                {"prompt_tokens", prompt},
                {"tokens", made.tokens},
                {"text", replace_invalid_utf8(written.text())},
                {"ended", made.ended},
                {"full", made.full}});
  } else {
    session.terminal.out << '\n';
    if (made.full && static_cast<int>(made.tokens.size()) < o.max_tokens)
      session.terminal.err << fmt::format("the model's {} positions are full\n", longest);
  }
  return interrupt.stopped().load() ? ExitCode::interrupted : ExitCode::ok;
}

Run define_sample(CLI::App& app) {
  auto o = std::make_shared<SampleOptions>();
  app.add_option("from", o->from, "a run's folder (its newest checkpoint), or a Hugging Face folder")
      ->type_name("DIR");
  add_text(app, {.flag = "--prompt", .metavar = "TEXT", .text = "the beginning of the text"}, o->prompt);
  add_text(app,
           {.flag = "--tokenizer",
            .metavar = "FILE",
            .text = "tokenizer.json, tokenizer.model or `bytes`; otherwise the one beside the "
                    "weights, or of the run's data"},
           o->tokenizer);
  add_step_option(app, o->step);
  add_number(app,
             {.flag = "--max-tokens", .metavar = "N", .text = "tokens to generate", .min = 1, .max = 1e6},
             o->max_tokens);
  add_number(app,
             {.flag = "--temperature",
              .metavar = "T",
              .text = "0 takes the likeliest token; 1 the model's own probabilities",
              .min = 0,
              .max = 100},
             o->temperature);
  add_number(app,
             {.flag = "--top-p",
              .metavar = "P",
              .text = "choose among the likeliest tokens that together have this probability",
              .min = 0,
              .max = 1},
             o->top_p);
  add_number(
      app,
      {.flag = "--seed", .metavar = "N", .text = "random seed of the sampling", .min = 0, .max = 2147483647},
      o->seed);
  add_text(app, {.flag = "--dtype", .metavar = "fp32|bf16|fp64", .text = "data type of the GEMMs"}, o->dtype);
  add_number(
      app,
      {.flag = "--threads", .metavar = "N", .text = "in the GEMMs; 0 = all cores", .min = 0, .max = 1024},
      o->threads);
  return [o](Session& session) { return run(session, *o); };
}

}  // namespace

Verb sample_verb() {
  return {.name = "sample",
          .summary = "continue a text, to look at a checkpoint",
          .description =
              "Reads weights and writes what they make of a text, token by token, on one rank. Temperature 0 "
              "takes the "
              "likeliest token each time; the same seed gives the same text. One sequence at a time: for "
              "looking, not "
              "for serving.",
          .examples = {{"what a run has learnt so far",
                        "sextant sample tiny-run --tokenizer bytes --prompt Once --max-tokens 8"}},
          .define = define_sample};
}

}  // namespace sextant
