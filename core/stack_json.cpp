// StackSpec to and from JSON, and the preset folder. One visitor lists every field with its key, so that
// reading, writing and the check for unknown keys cannot drift apart.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/decimal.hpp"
#include "core/stack_spec.hpp"

namespace sextant {

namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 7> kAttentionNames = {"unfused", "fused_softmax", "flash1", "flash2",
                                                             "flash3",  "cudnn",         "triton"};

// Quantities are stored in the unit that their key names.
struct Microseconds {
  Seconds& value;
};
struct Milliseconds {
  Seconds& value;
};
struct Gibibytes {
  Bytes& value;
};

template <class V>
void visit(StackCapabilities& c, V&& v) {
  v("zero_stages", c.zero_stages);
  v("max_zero_with_pp", c.max_zero_with_pp);
  v("tensor_parallel", c.tensor_parallel);
  v("pipeline_parallel", c.pipeline_parallel);
  v("sequence_parallel", c.sequence_parallel);
  v("context_parallel", c.context_parallel);
  v("interleaved", c.interleaved);
  v("gpipe", c.gpipe);
  v("zero_bubble", c.zero_bubble);
  v("uneven_stages", c.uneven_stages);
  v("shard_degree", c.shard_degree);
  v("replicas_divide_hidden", c.replicas_divide_hidden);
  v("recompute_selective", c.recompute_selective);
  v("recompute_full", c.recompute_full);
  v("recompute_layers", c.recompute_layers);
  v("optimizer_offload", c.optimizer_offload);
  v("parameter_offload", c.parameter_offload);
  v("activation_offload", c.activation_offload);
  v("activation_offload_needs_recompute", c.activation_offload_needs_recompute);
  v("overlap_grad_reduce", c.overlap_grad_reduce);
  v("overlap_param_gather", c.overlap_param_gather);
  v("overlap_tp", c.overlap_tp);
  v("bucket_size", c.bucket_size);
  v("last_bucket_split", c.last_bucket_split);
  v("fp8", c.fp8);
}

template <class V>
void visit(StackRules& r, V&& v) {
  v("reduce_every_microbatch", r.reduce_every_microbatch);
  v("zero3_reduce_every_microbatch", r.zero3_reduce_every_microbatch);
  v("pipelined_update", r.pipelined_update);
  v("gather_beside_forward", r.gather_beside_forward);
  v("p2p_beside_compute_1f1b", r.p2p_beside_compute_1f1b);
  v("p2p_beside_compute_interleaved", r.p2p_beside_compute_interleaved);
  v("bucket_elements", r.bucket_elements);
  v("bucket_elements_per_replica", r.bucket_elements_per_replica);
  v("prefetch_blocks", r.prefetch_blocks);
  v("zero3_regather_in_backward", r.zero3_regather_in_backward);
  v("head_fused_with_loss", r.head_fused_with_loss);
  v("loss_gathers_logits", r.loss_gathers_logits);
  v("vocab_multiple", r.vocab_multiple);
  v("scatter_p2p", r.scatter_p2p);
  v("clip_gradients", r.clip_gradients);
}

template <class V>
void visit(StackKernels& k, V&& v) {
  v("attention", k.attention);
  v("norm_fused", k.norm_fused);
  v("pointwise_passes", k.pointwise_passes);
  v("loss_bytes_per_logit", k.loss_bytes_per_logit);
  v("host_forward_per_layer_us", Microseconds{k.host_forward_per_layer});
  v("host_tp_per_layer_us", Microseconds{k.host_tp_per_layer});
  v("gemm_bonus", k.gemm_bonus);
  v("tp_hidden_share", k.tp_hidden_share);
  v("accumulate_bytes", k.accumulate_bytes);
  v("update_bytes", k.update_bytes);
  v("norm_bytes", k.norm_bytes);
  v("step_overhead_ms", Milliseconds{k.step_overhead});
  v("straggler_per_log2_node", k.straggler_per_log2_node);
  v("comm_slows_compute", k.comm_slows_compute);
  v("compute_slows_comm", k.compute_slows_comm);
}

template <class V>
void visit(StackMemory& m, V&& v) {
  v("saved_hidden", m.saved_hidden);
  v("saved_ffn", m.saved_ffn);
  v("saved_rope", m.saved_rope);
  v("saved_tp", m.saved_tp);
  v("attention_scores", m.attention_scores);
  v("full_recompute_hidden", m.full_recompute_hidden);
  v("logits_bytes", m.logits_bytes);
  v("gradient_bytes", m.gradient_bytes);
  v("ddp_extra_bytes", m.ddp_extra_bytes);
  v("fragmentation", m.fragmentation);
  v("outside_GiB", Gibibytes{m.outside});
}

// value * 10^shift without the rounding of a product, so that a round trip gives the same double.
double shifted(double value, int shift) { return *parse_decimal(decimal(value, shift)); }

struct Writer {
  Json& out;
  template <class T>
  void operator()(const char* key, const T& value) const {
    if constexpr (std::is_same_v<T, Microseconds>)
      out[key] = shifted(value.value.v, 6);
    else if constexpr (std::is_same_v<T, Milliseconds>)
      out[key] = shifted(value.value.v, 3);
    else if constexpr (std::is_same_v<T, Gibibytes>)
      out[key] = gib(value.value);
    else if constexpr (std::is_same_v<T, AttentionKernel>)
      out[key] = kAttentionNames[static_cast<std::size_t>(value)];
    else
      out[key] = value;
  }
};

class Reader {
 public:
  Reader(const Json& in, std::string path, std::vector<Problem>& problems)
      : in_(in), path_(std::move(path)), problems_(problems) {}

  template <class T>
  void operator()(const char* key, T&& value) {
    known_.emplace_back(key);
    if (!in_.contains(key)) return;
    read(key, in_[key], value);
  }

  void report_unknown(const std::set<std::string>& ignored = {}) {
    for (const auto& [key, value] : in_.items()) {
      if (ignored.contains(key) || std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      const std::string near = closest(key, known_);
      problems_.push_back({"", path_ + key, value.dump().substr(0, 60), "a key of a software stack",
                           near.empty() ? "" : "did you mean " + near + "?"});
    }
  }

 private:
  void wrong(const char* key, const Json& j, std::string expected) {
    problems_.push_back({"", path_ + key, j.dump().substr(0, 60), std::move(expected), ""});
  }
  bool number(const char* key, const Json& j, double& out) {
    if (!j.is_number() || !std::isfinite(j.get<double>()) || j.get<double>() < 0) {
      wrong(key, j, "a number that is not negative");
      return false;
    }
    out = j.get<double>();
    return true;
  }
  void read(const char* key, const Json& j, bool& out) {
    if (j.is_boolean())
      out = j.get<bool>();
    else
      wrong(key, j, "true or false");
  }
  template <class I>
  requires std::is_integral_v<I>
  void read(const char* key, const Json& j, I& out) {
    if (j.is_number_integer() && j.get<std::int64_t>() >= 0 &&
        j.get<std::int64_t>() <= std::int64_t{std::numeric_limits<I>::max()})
      out = static_cast<I>(j.get<std::int64_t>());
    else
      wrong(key, j, "an integer that is not negative");
  }
  void read(const char* key, const Json& j, double& out) { number(key, j, out); }
  void read(const char* key, const Json& j, Microseconds& out) {
    double x = 0;
    if (number(key, j, x)) out.value = Seconds(shifted(x, -6));
  }
  void read(const char* key, const Json& j, Milliseconds& out) {
    double x = 0;
    if (number(key, j, x)) out.value = Seconds(shifted(x, -3));
  }
  void read(const char* key, const Json& j, Gibibytes& out) {
    double x = 0;
    if (number(key, j, x)) out.value = from_gib(x);
  }
  void read(const char* key, const Json& j, std::string& out) {
    if (j.is_string())
      out = j.get<std::string>();
    else
      wrong(key, j, "a text");
  }
  void read(const char* key, const Json& j, AttentionKernel& out) {
    const auto found = j.is_string()
                           ? std::find(kAttentionNames.begin(), kAttentionNames.end(), j.get<std::string>())
                           : kAttentionNames.end();
    if (found == kAttentionNames.end())
      wrong(key, j, fmt::format("one of {}", fmt::join(kAttentionNames, ", ")));
    else
      out = static_cast<AttentionKernel>(found - kAttentionNames.begin());
  }
  void read(const char* key, const Json& j, std::vector<int>& out) {
    const bool fits = j.is_array() && !j.empty() && std::all_of(j.begin(), j.end(), [](const Json& e) {
                        return e.is_number_integer() && e.get<int>() >= 0 && e.get<int>() <= 3;
                      });
    if (fits)
      out = j.get<std::vector<int>>();
    else
      wrong(key, j, "a list of ZeRO stages 0 to 3");
  }

  const Json& in_;
  std::string path_;
  std::vector<Problem>& problems_;
  std::vector<std::string> known_;
};

template <class Part>
void read_part(const Json& j, const char* name, Part& part, std::vector<Problem>& problems) {
  if (!j.contains(name)) return;
  if (!j[name].is_object()) {
    problems.push_back({"", name, j[name].dump().substr(0, 60), "an object", ""});
    return;
  }
  Reader reader(j[name], std::string(name) + ".", problems);
  visit(part, reader);
  reader.report_unknown();
}

StackSpec parse(const Json& j, StackSpec s, std::vector<Problem>& problems) {
  if (!j.is_object()) {
    problems.push_back({"", "", j.dump().substr(0, 60), "an object describing a software stack", ""});
    return s;
  }
  Reader top(j, "", problems);
  top("name", s.name);
  top("title", s.title);
  top("version", s.version);
  top("source", s.source);
  top.report_unknown({"can", "rules", "kernels", "memory", "base", "about"});
  read_part(j, "can", s.can, problems);
  read_part(j, "rules", s.rules, problems);
  read_part(j, "kernels", s.kernels, problems);
  read_part(j, "memory", s.memory, problems);
  if (s.rules.vocab_multiple < 1) problems.push_back({"", "rules.vocab_multiple", "0", "at least 1", ""});
  if (s.name.empty()) problems.push_back({"", "name", "", "a name", ""});
  return s;
}

std::vector<std::string> names_in(const std::filesystem::path& dir) {
  std::vector<std::string> names;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ec))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void unknown_stack(const std::string& name, const std::filesystem::path& dir) {
  const auto known = names_in(dir);
  const std::string near = closest(name, known);
  throw ConfigError(Problem{"", "stack", name,
                            known.empty() ? fmt::format("a preset of {}", dir.string())
                                          : fmt::format("one of {}, or a JSON file", fmt::join(known, ", ")),
                            near.empty() ? "" : "did you mean " + near + "?"});
}

StackSpec load(const std::filesystem::path& path, const std::filesystem::path& dir, int depth) {
  constexpr int kDeepestBase = 8;
  const std::string file = path.string();
  std::ifstream in(path);
  if (!in) throw ConfigError(Problem{file, "", "", "a readable stack file", ""});
  Json j;
  try {
    j = Json::parse(in, nullptr, true, true);
  } catch (const Json::exception& e) {
    throw ConfigError(Problem{file, "", "", "JSON", e.what()});
  }
  StackSpec base;
  if (j.is_object() && j.contains("base")) {
    if (!j["base"].is_string() || depth >= kDeepestBase)
      throw ConfigError(
          Problem{file, "base", j["base"].dump(), "the name of another stack, without a circle", ""});
    const auto base_path = dir / (j["base"].get<std::string>() + ".json");
    if (!std::filesystem::exists(base_path)) unknown_stack(j["base"].get<std::string>(), dir);
    base = load(base_path, dir, depth + 1);
  }
  std::vector<Problem> problems;
  StackSpec s = parse(j, std::move(base), problems);
  for (auto& p : problems) p.file = file;
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return s;
}

}  // namespace

std::string_view name(AttentionKernel k) { return kAttentionNames[static_cast<std::size_t>(k)]; }

void to_json(Json& j, const StackSpec& spec) {
  StackSpec s = spec;
  j = {{"name", s.name}, {"title", s.title}, {"version", s.version}, {"source", s.source}};
  visit(s.can, Writer{j["can"]});
  visit(s.rules, Writer{j["rules"]});
  visit(s.kernels, Writer{j["kernels"]});
  visit(s.memory, Writer{j["memory"]});
}

void from_json(const Json& j, StackSpec& s) {
  std::vector<Problem> problems;
  s = parse(j, {}, problems);
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

std::vector<std::string> stack_names(const std::filesystem::path& preset_dir) {
  return names_in(preset_dir / "stacks");
}

StackSpec load_stack(const std::string& name_or_path, const std::filesystem::path& preset_dir) {
  const auto stacks = preset_dir / "stacks";
  if (name_or_path.ends_with(".json") || name_or_path.find('/') != std::string::npos)
    return load(name_or_path, stacks, 0);
  const auto path = stacks / (name_or_path + ".json");
  if (!std::filesystem::exists(path)) unknown_stack(name_or_path, stacks);
  return load(path, stacks, 0);
}

}  // namespace sextant
