#include "runtime/weights/hugging_face.hpp"

#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "core/base/mapped_range.hpp"
#include "core/model/hugging_face_families.hpp"
#include "core/model/model_files.hpp"
#include "kernels/parallel.hpp"
#include "runtime/weights/number_formats.hpp"
#include "runtime/weights/stored_shape.hpp"
#include "runtime/weights/weight_index.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// What stands in a folder without safetensors, and how to come by them.
std::string how_to_convert(const fs::path& folder) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with("consolidated.") && file.ends_with(".pth"))
      return "Meta's consolidated.*.pth are pickled and interleave rotary pairs; they are not read: convert "
             "them with "
             "python -m transformers.models.llama.convert_llama_weights_to_hf --input_dir DIR --output_dir "
             "OUT";
    if (file.starts_with("pytorch_model") && file.ends_with(".bin"))
      return "pytorch_model*.bin are pickled and not read: in Python, "
             "AutoModelForCausalLM.from_pretrained(DIR)"
             ".save_pretrained(OUT, safe_serialization=True) writes safetensors";
  }
  return "";
}

constexpr const char* kReadable = "F64, F32, F16 or BF16";
constexpr const char* kHowToWiden =
    "quantized weights and their scales are not read: in Python, load the model with its weights dequantized "
    "(transformers: from_pretrained(DIR, dtype=torch.bfloat16) and model.dequantize(), as far as the format "
    "has it), "
    "and save it with save_pretrained(OUT)";

std::string quantization_of(const nlohmann::json& config) {
  const auto method = config.is_object() ? config.find("quant_method") : config.end();
  return config.is_object() && method != config.end() && method->is_string() ? method->get<std::string>()
                                                                             : config.dump();
}

struct Config {
  ModelSpec model;
  const ModelFamily* family = nullptr;
};

Config read_config(const fs::path& folder) {
  std::error_code none;
  if (!fs::is_directory(folder, none))
    throw ConfigError(Problem{folder.string(), "", fs::exists(folder, none) ? "a file" : "nothing",
                              "a Hugging Face checkpoint folder", ""});
  const fs::path file = folder / "config.json";
  if (!fs::exists(file, none))
    throw ConfigError(Problem{folder.string(), "", "no config.json",
                              "a Hugging Face checkpoint folder: config.json and *.safetensors",
                              how_to_convert(folder)});
  const nlohmann::json config = read_json_file(file);
  Config read;
  with_file(file.string(), [&] {
    read.model = model_from_hugging_face(config, fs::weakly_canonical(folder).filename().string());
    read.family = family_of_config(config);
    if (!read.family)
      throw ConfigError(Problem{"", "model_type", config.value("model_type", ""), "of LLaMA's family",
                                "weights of other architectures are not read"});
    if (config.contains("quantization_config") && !config["quantization_config"].is_null())
      throw ConfigError(Problem{"", "quantization_config", quantization_of(config["quantization_config"]),
                                fmt::format("none: weights in {}", kReadable), kHowToWiden});
  });
  return read;
}

bool says_nothing(const std::string& tensor) { return tensor.ends_with(".rotary_emb.inv_freq"); }

}  // namespace

struct HuggingFaceFolder::Impl {
  fs::path folder;
  Config config;
  const ModelSpec& model = config.model;
  WeightIndex index;  // of a single file: everything in it
  std::string index_file;
  mutable std::mutex mutex;
  mutable std::map<std::string, SafetensorsFile, std::less<>> shards;

  explicit Impl(fs::path where) : folder(std::move(where)), config(read_config(folder)) {
    std::error_code none;
    if (fs::exists(folder / kSingle, none)) {
      index_file = (folder / kSingle).string();
      for (const StoredTensor& t : shard(kSingle).tensors()) index.shard_of[t.name] = kSingle;
    } else if (fs::exists(folder / kIndex, none)) {
      index_file = (folder / kIndex).string();
      index = parse_weight_index(read_text_file(folder / kIndex), index_file);
    } else {
      throw ConfigError(Problem{folder.string(), "", "no safetensors",
                                fmt::format("{} or {}", kSingle, kIndex), how_to_convert(folder)});
    }
  }

  const SafetensorsFile& shard(const std::string& name) const {
    const std::lock_guard lock(mutex);
    auto at = shards.find(name);
    if (at == shards.end()) at = shards.emplace(name, SafetensorsFile(folder / name)).first;
    return at->second;
  }

  TensorPlace place(const std::string& name, std::int64_t rows) const {
    return place_of(*config.family, model, name, rows);
  }
  std::string stored_name(ParameterKind kind) const { return place(parameter_name(kind, 0), 0).tensor; }
  TensorPlace place(const ModelSlice& s) const {
    const bool copy = model.tied_embeddings && s.name == parameter_name(ParameterKind::head, 0);
    return place(copy ? parameter_name(ParameterKind::embedding, 0) : s.name,
                 is_row(s) ? s.model_cols : s.model_rows);
  }

  std::string file_of(const std::string& tensor) const {
    const auto at = index.shard_of.find(tensor);
    if (at == index.shard_of.end()) {
      std::vector<std::string> names;
      for (const auto& [name, file] : index.shard_of) names.push_back(name);
      const std::string near = closest(tensor, names);
      throw ConfigError(Problem{index_file, tensor, "nothing", "a tensor of this name",
                                near.empty() ? "" : fmt::format("is {} another name for it?", near)});
    }
    std::error_code none;
    if (!fs::exists(folder / at->second, none))
      throw ConfigError(Problem{(folder / at->second).string(), tensor, "no such file",
                                "the shard that the index names for it", "fetch the checkpoint again"});
    return at->second;
  }

  // The tensor where it is stored, judged.
  std::pair<const SafetensorsFile*, const StoredTensor*> find(const ModelSlice& s) const {
    const TensorPlace at = place(s);
    const std::string &tensor = at.tensor, file = file_of(tensor);
    const SafetensorsFile& from = shard(file);
    const std::vector<std::int64_t> shape = stored_shape(s, at.rows);
    const StoredTensor& t = from.require(tensor);
    if (!is_floating(t.type))  // before its shape: packed integers have another
      throw ConfigError(Problem{(folder / file).string(), tensor + ".dtype", std::string(name(t.type)),
                                kReadable, kHowToWiden});
    from.require(tensor, {}, shape);
    return {&from, &t};
  }

  // Runs of elements that stand one behind the other in the file: a row's part, or of one row what is not packed apart.
  void read(const ModelSlice& s, std::span<double> values) const {
    const auto found = find(s);
    const auto& file = found.first;
    const auto& t = found.second;
    const TensorPlace at = place(s);
    const auto size = static_cast<std::size_t>(size_bytes(t->type));
    const auto bytes = file->bytes(*t);
    const bool row = is_row(s);
    const std::int64_t count = row ? s.cols : s.real_rows(), first = row ? s.first_col : s.first_row,
                       width = row ? 1 : s.cols, column = row ? 0 : s.first_col,
                       stride = row ? 1 : s.model_cols;
    const auto read_run = [&](std::int64_t r) {
      const std::int64_t stored = at.row(first + r);
      const auto from = static_cast<std::size_t>(stored * stride + column),
                 n = static_cast<std::size_t>(width);
      const auto to = values.subspan(static_cast<std::size_t>(r) * n, n);
      decode_numbers(t->type, bytes.subspan(from * size, n * size), to);
      for (std::size_t c = 0; c < n; ++c)
        if (!std::isfinite(to[c]))
          throw ConfigError(Problem{(folder / index.shard_of.at(t->name)).string(), t->name,
                                    fmt::format("{} at [{}, {}]", to[c], row ? 0 : stored,
                                                (row ? stored : column) + static_cast<std::int64_t>(c)),
                                    "finite numbers", "the checkpoint is damaged, or its training diverged"});
    };
    // By all cores: they wait for the disk together, and no core converts a model alone.
    parallel_for(count, std::max<std::int64_t>(1, (1 << 16) / std::max<std::int64_t>(1, width)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t r = begin; r < end; ++r) read_run(r);
                 });
    std::int64_t lowest = at.rows, highest = 0;
    for (std::int64_t r = 0; r < count; ++r) {
      lowest = std::min(lowest, at.row(first + r));
      highest = std::max(highest, at.row(first + r) + 1);
    }
    if (lowest < highest)
      let_go(bytes.subspan(static_cast<std::size_t>(lowest * stride) * size,
                           static_cast<std::size_t>((highest - lowest) * stride) * size));
  }

  // A tensor that the model does not have.
  void judge_stranger(const std::string& file, const SafetensorsFile& from, const StoredTensor& t) const {
    if (says_nothing(t.name)) return;
    const std::string path = (folder / file).string();
    if (model.tied_embeddings && t.name == stored_name(ParameterKind::head)) {
      const StoredTensor* embedding = nullptr;
      const std::string name = stored_name(ParameterKind::embedding);
      const auto at = index.shard_of.find(name);
      if (at != index.shard_of.end()) embedding = shard(at->second).find(name);
      if (!embedding) return;  // told already
      const auto a = from.bytes(t), b = shard(at->second).bytes(*embedding);
      if (std::equal(a.begin(), a.end(), b.begin(), b.end())) return;
      throw ConfigError(Problem{path, t.name, fmt::format("other values than {}", name),
                                "the same: config.json states tie_word_embeddings", ""});
    }
    throw ConfigError(Problem{path, t.name, fmt::format("{} [{}]", name(t.type), fmt::join(t.shape, ", ")),
                              "no tensor of this name: config.json describes a model without it", ""});
  }
};

HuggingFaceFolder::HuggingFaceFolder(fs::path path) : impl_(std::make_shared<Impl>(std::move(path))) {}

const fs::path& HuggingFaceFolder::path() const { return impl_->folder; }
const ModelSpec& HuggingFaceFolder::model() const { return impl_->model; }

WeightSource HuggingFaceFolder::weights() const {
  return [impl = impl_](const ModelSlice& s, std::span<double> values) { impl->read(s, values); };
}

WeightInventory HuggingFaceFolder::check() const {
  WeightInventory found;
  std::vector<Problem> problems;
  std::set<std::string> seen;  // a missing or broken shard is told once
  const auto collect = [&](const auto& ask) {
    try {
      ask();
    } catch (const ConfigError& e) {
      for (const Problem& p : e.problems()) {
        if (!seen.insert(to_string(p)).second || !seen.insert(p.file + "\n" + p.value).second) continue;
        problems.push_back(p);
        if (!seen.insert(p.hint).second) problems.back().hint.clear();  // what to do, once
      }
    }
  };
  std::set<std::string> files, wanted;
  for (const ModelSlice& s : model_tensors(impl_->model)) {
    const bool first = wanted.insert(impl_->place(s).tensor).second;  // several of ours may lie in one
    collect([&] {
      const auto [file, t] = impl_->find(s);
      if (!first) return;
      if (found.tensors == 0) found.type = t->type;
      if (found.type != t->type) found.type.reset();
      ++found.tensors;
      found.parameters += t->elements();
      found.bytes += t->end - t->begin;
    });
  }
  for (const auto& [tensor, file] : impl_->index.shard_of) files.insert(file);
  found.shards = static_cast<int>(files.size());
  for (const std::string& file : files) {
    std::error_code none;
    if (!fs::exists(impl_->folder / file, none)) continue;  // told already, if anything of it is wanted
    collect([&] {
      const SafetensorsFile& from = impl_->shard(file);
      for (const StoredTensor& t : from.tensors()) {
        const auto at = impl_->index.shard_of.find(t.name);
        if (at != impl_->index.shard_of.end() && at->second != file)
          collect([&] {
            throw ConfigError(Problem{(impl_->folder / file).string(), t.name, "a second copy",
                                      fmt::format("only the one in {}, where the index has it", at->second),
                                      ""});
          });
        else if (!wanted.contains(t.name))
          collect([&] { impl_->judge_stranger(file, from, t); });
      }
    });
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return found;
}

void require_same_model(const HuggingFaceFolder& folder, const ModelSpec& planned) {
  const ModelSpec& m = folder.model();
  std::vector<Problem> problems;
  const auto compare = [&](const char* key, const auto& found, const auto& expected) {
    if (found != expected)
      problems.push_back({(folder.path() / "config.json").string(), key, fmt::format("{}", found),
                          fmt::format("{}, as in the plan", expected), ""});
  };
  const auto rope = [](const ModelSpec& of) -> std::string {
    if (!of.rope_scaling) return "none";
    const RopeScaling& s = *of.rope_scaling;
    if (s.not_run) return *s.not_run;
    if (s.type == "linear") return fmt::format("linear x{}", s.factor);  // it has no other numbers
    if (s.type == "dynamic") return fmt::format("dynamic x{} beyond {}", s.factor, of.max_positions);
    if (s.type == "yarn")
      return fmt::format("yarn x{} ({}, {}, {}, {})", s.factor, s.beta_fast, s.beta_slow, s.attention_factor,
                         s.original_max_positions);
    if (s.type == "longrope")
      return fmt::format("longrope x{} beyond {} (attention {}; short {}; long {})", s.factor,
                         s.original_max_positions, s.attention_factor, fmt::join(s.short_factor, " "),
                         fmt::join(s.long_factor, " "));
    return fmt::format("{} x{} ({}, {}, {})", s.type, s.factor, s.low_freq_factor, s.high_freq_factor,
                       s.original_max_positions);
  };
  compare("num_hidden_layers", m.n_layers, planned.n_layers);
  compare("hidden_size", m.hidden, planned.hidden);
  compare("num_attention_heads", m.n_heads, planned.n_heads);
  compare("num_key_value_heads", m.n_kv_heads, planned.n_kv_heads);
  compare("head_dim", m.head_dim, planned.head_dim);
  compare("intermediate_size", m.ffn_hidden, planned.ffn_hidden);
  compare("vocab_size", m.vocab_size, planned.vocab_size);
  compare("tie_word_embeddings", m.tied_embeddings, planned.tied_embeddings);
  compare("rope_theta", m.rope_theta, planned.rope_theta);
  compare("rope_scaling", rope(m), rope(planned));
  compare("rms_norm_eps", m.norm_eps, planned.norm_eps);
  compare("attention_bias (of q, k and v)", m.qkv_bias, planned.qkv_bias);
  compare("attention_bias (of the output)", m.output_bias, planned.output_bias);
  compare("mlp_bias", m.mlp_bias, planned.mlp_bias);
  const auto word = [](const auto& names, auto value) { return names[static_cast<std::size_t>(value)]; };
  compare("norms of q and k", word(kQkNormNames, m.qk_norm), word(kQkNormNames, planned.qk_norm));
  compare("norms", word(kNormPlacementNames, m.norm_placement),
          word(kNormPlacementNames, planned.norm_placement));
  compare("positions", word(kPositionNames, m.position), word(kPositionNames, planned.position));
  compare("sliding_window", m.window, planned.window);
  compare("normalized head", m.normalized_head, planned.normalized_head);
  if (problems.empty()) return;
  problems.back().hint = fmt::format("these weights are of another model: plan for them with --model {}",
                                     folder.path().string());
  throw ConfigError(std::move(problems));
}

}  // namespace sextant
