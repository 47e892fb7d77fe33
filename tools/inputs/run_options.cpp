#include "tools/inputs/run_options.hpp"

#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/former_keys.hpp"
#include "core/base/json_digest.hpp"
#include "core/base/json_io.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct KeptOptions {
  std::string schema = kRunOptionsSchema;
  RunVerbOptions o;
  std::vector<DataFolder> data;
  std::string init_dtype;
};
constexpr const char* kDigestKey = "digest";      // of all other fields
constexpr FormerKey kGemms{"products", "gemms"};  // of version 0.1, read until version 0.3

constexpr auto kKeptFields = [](auto& io, auto& k) {
  io.required("schema", k.schema);
  io.ignored(kDigestKey);
  io.optional("steps", k.o.steps, at_least(1));
  io.optional("lr", k.o.rate, at_least(0));
  io.optional("lr_final_ratio", k.o.final_ratio, between(0, 1));
  io.optional("warmup", k.o.warmup, at_least(0));
  io.optional("weight_decay", k.o.weight_decay, at_least(0));
  io.optional("clip", k.o.clip, above(0));
  io.optional("seed", k.o.running.seed, at_least(0));
  io.optional("device", k.o.running.device);
  io.optional(kGemms.present, k.o.running.gemms);
  io.optional("shaped", k.o.running.shaped);
  io.optional("threads", k.o.running.threads, between(0, 1024));
  io.optional("data", k.data);
  io.optional("packing", k.o.data.packing);
  io.optional("eval_every", k.o.data.eval_every, at_least(0));
  io.optional("eval_batches", k.o.data.eval_batches, at_least(1));
  io.optional("init", k.o.init);
  io.optional("init_dtype", k.init_dtype);
  io.optional("save_every", k.o.checkpoints.save_every, at_least(0));
  io.optional("keep_last", k.o.checkpoints.keep_last, at_least(1));
  io.optional("keep_every", k.o.checkpoints.keep_every, at_least(0));
  io.optional("keep_all", k.o.checkpoints.keep_all);
  io.optional("max_skipped", k.o.max_skipped, at_least(1));
  io.optional("deadline_s", k.o.deadline_s, at_least(1));
  io.optional("print_every", k.o.print_every, at_least(1));
};
void to_json(json& j, const KeptOptions& k) { write_object(j, k, kKeptFields); }
void from_json(const json& j, KeptOptions& k) {
  json today = j;
  take_present_key(today, kGemms);
  read_object(today, k, kKeptFields);
  if (k.schema != kRunOptionsSchema)
    throw ConfigError(
        Problem{"", "schema", k.schema, kRunOptionsSchema, "written by another version of sextant?"});
}

struct Kept {
  const char* key;
  const char* flag;
};
// What of the file is an option; `init` is none for a run that has its weights already.
constexpr std::array<Kept, 22> kKept = {{{"steps", "--steps"},
                                         {"lr", "--lr"},
                                         {"lr_final_ratio", "--lr-final-ratio"},
                                         {"warmup", "--warmup"},
                                         {"weight_decay", "--weight-decay"},
                                         {"clip", "--clip"},
                                         {"seed", "--seed"},
                                         {"device", "--device"},
                                         {kGemms.present, "--gemms"},
                                         {"shaped", "--shaped"},
                                         {"threads", "--threads"},
                                         {"data", "--data"},
                                         {"packing", "--packing"},
                                         {"eval_every", "--eval-every"},
                                         {"eval_batches", "--eval-batches"},
                                         {"init", "--init"},
                                         {"save_every", "--save-every"},
                                         {"keep_last", "--keep-last"},
                                         {"keep_every", "--keep-every"},
                                         {"max_skipped", "--max-skipped"},
                                         {"deadline_s", "--deadline"},
                                         {"print_every", "--print-every"}}};

json as_json(const RunVerbOptions& o, const std::string& init_dtype = "") {
  KeptOptions k{.o = o, .data = data_folders(o.data.data), .init_dtype = init_dtype};
  std::error_code error;
  if (const fs::path all = fs::absolute(o.init, error); !o.init.empty() && !error) k.o.init = all.string();
  json j = k;
  j[kDigestKey] = digest_without(j, {kDigestKey});
  return j;
}

// Options that a checkpoint holds itself.
json of_manifest(const Manifest& m) {
  const OptimizerSpec& s = m.optimizer;
  json j = {{"steps", s.total_steps},
            {"lr", s.rate},
            {"lr_final_ratio", s.final_ratio},
            {"warmup", s.warmup_steps},
            {"weight_decay", s.weight_decay},
            {"clip", s.clip_norm},
            {"seed", m.seed}};
  const json data = json::parse(m.data, nullptr, false);
  if (data.is_object() && data.contains("sets")) {
    j["data"] = data.at("sets");
    for (json& set : j["data"]) set.erase("digest");
    j["packing"] = data.value("packing", "across");
  }
  return j;
}

// The text of one value as it would be given.
std::string given_as(const Kept& kept, const json& value) {
  if (value.is_boolean()) return fmt::format("{}={}", kept.flag, value.get<bool>());
  if (!value.is_array()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    return fmt::format("{} {}", kept.flag, text.empty() ? "none" : text);
  }
  std::string all;
  for (const std::string& folder : found_again(value.get<std::vector<DataFolder>>()))
    all += fmt::format("{}{} {}", all.empty() ? "" : " ", kept.flag, folder);
  return all.empty() ? fmt::format("{} none", kept.flag) : all;
}

void append(std::string& line, std::string_view between, const std::string& words) {
  if (!line.empty()) line += between;
  line += words;
}

// A data set is the same one however its folder is called from here.
bool same(json a, json b) {
  for (json* value : {&a, &b})
    if (value->is_array())
      for (json& set : *value) {
        const std::string path = set.value("path", "");
        set["path"] = path.empty() ? fs::absolute(set.value("folder", "")).lexically_normal().string() : path;
        set.erase("folder");
      }
  return a == b;
}

// What the run's folder knows of its options, all of it as KeptOptions has it; an empty object when it knows nothing.
struct KnownOptions {
  json was = json::object();
  std::string problem;  // why they are not those of options.json
};

// How the one differs from the other, as options that one would give.
std::string differences(const json& found, const json& used) {
  std::string all;
  for (const Kept& option : kKept) {
    const auto a = found.find(option.key), b = used.find(option.key);
    if (a == found.end() || b == used.end() || *a == *b) continue;
    append(all, ", ", fmt::format("{} where {} was written", given_as(option, *a), given_as(option, *b)));
  }
  return all.empty() ? "in none of the options" : all;
}

// options.json is believed where its digest is that of its values, or where it is from before it had one. Otherwise the run's
// options are those that its checkpoint has. Throws ConfigError when neither says which.
KnownOptions known_options(const fs::path& file, const Manifest* from) {
  const json saved = from ? json::parse(from->options) : json::object();
  const std::string source =
      from ? fmt::format("the options are those of the checkpoint of step {}", from->clock.step) : "";
  std::error_code none;
  if (!fs::exists(file, none))
    return {saved, saved.empty() ? "" : fmt::format("{}: no such file; {}", file.string(), source)};
  json found = json::object();
  try {
    (void)load_json<KeptOptions>(file);
    found = read_json_file(file);
    const auto stated = found.find(kDigestKey);
    if (stated == found.end() ? !saved.empty() : *stated != digest_without(found, {kDigestKey}))
      throw ConfigError(
          Problem{file.string(), kDigestKey, stated == found.end() ? "none" : "that of other contents",
                  "that of this file", "changed by hand? options are given on the command line"});
    return {found, ""};
  } catch (const ConfigError& e) {
    if (!from) throw;
    if (saved.empty()) return {saved, e.what()};
    if (found.empty()) return {saved, fmt::format("{}; {}", e.what(), source)};
    return {saved, fmt::format("{} was changed since the run wrote it ({}); {}", file.string(),
                               differences(found, saved), source)};
  }
}

}  // namespace

std::string run_options_text(const RunVerbOptions& o, const std::string& init_dtype) {
  return as_json(o, init_dtype).dump(2) + "\n";
}

std::string kept_init_dtype(const fs::path& run, const Manifest& m) {
  if (const json saved = json::parse(m.options); saved.contains("init_dtype")) return saved.at("init_dtype");
  const fs::path file = run / kRunOptionsFile;
  std::error_code none;
  return fs::is_regular_file(file, none) ? load_json<KeptOptions>(file).init_dtype : "";
}

std::string unused_fields(const RunVerbOptions& o) {
  const bool graphs = o.running.cuda_graphs == "on";
  if (o.running.device == "cuda" || (!o.record && !graphs)) return "";
  return fmt::format("not used by CPU ranks, which have neither CUPTI nor CUDA graphs: {}{}{}",
                     o.record ? "--record" : "", o.record && graphs ? ", " : "",
                     graphs ? "--cuda-graphs" : "");
}

AdoptedOptions adopt_options(const CLI::App& app, const Manifest* from, RunVerbOptions& o) {
  AdoptedOptions adopted;
  const auto given = [&](const char* flag) { return app.get_option(flag)->count() > 0; };
  auto [was, problem] = known_options(fs::path(o.output) / kRunOptionsFile, from);
  adopted.problem = std::move(problem);
  if (take_present_key(was, kGemms)) adopted.former = former_text(kRunOptionsFile, {change_text(kGemms)});
  const bool kept = !was.empty();
  if (!kept && !from) return adopted;  // nothing has begun
  if (from && (!kept || o.checkpoints.resume_step >= 0)) was.update(of_manifest(*from));
  adopted.init_dtype = was.value("init_dtype", "");

  const json defaults = KeptOptions{};
  json now = as_json(o);
  for (const Kept& option : kKept) {
    const auto before = was.find(option.key);
    json& value = now.at(option.key);
    if (from && option.key == std::string_view("init")) {  // its weights are those of the checkpoint
      if (before != was.end()) value = *before;
    } else if (before == was.end()) {
      if (!given(option.flag)) append(adopted.not_kept, " ", given_as(option, value));
    } else if (!given(option.flag)) {
      if (*before != defaults.at(option.key)) append(adopted.as_before, " ", given_as(option, *before));
      value = *before;
    } else if (!same(*before, value)) {
      append(adopted.changed, ", ",
             fmt::format("{} (was {})", given_as(option, value),
                         given_as(option, *before).substr(std::string_view(option.flag).size() + 1)));
    }
  }
  KeptOptions result = now.get<KeptOptions>();
  result.o.data.data = given("--data") ? o.data.data : found_again(result.data);
  result.o.data.of_the_run = !given("--data");
  // Checkpoints of a run of which it is not known how many it keeps are not this command's to drop.
  result.o.checkpoints.keep_all = !given("--keep-every") && (!kept || was.value("keep_all", false));

  // What is of this start alone.
  const RunVerbOptions here = std::move(o);
  o = std::move(result.o);
  o.running.plan = here.running.plan;
  o.running.comm = here.running.comm;
  o.profile = here.profile;
  o.output = here.output;
  o.trace = here.trace;
  o.running.cuda_graphs = here.running.cuda_graphs;
  o.record = here.record;
  CheckpointFlags flags = here.checkpoints;
  flags.save_every = o.checkpoints.save_every;
  flags.keep_last = o.checkpoints.keep_last;
  flags.keep_every = o.checkpoints.keep_every;
  flags.keep_all = o.checkpoints.keep_all;
  o.checkpoints = flags;
  return adopted;
}

}  // namespace sextant
