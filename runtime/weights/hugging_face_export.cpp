#include "runtime/weights/hugging_face_export.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "core/base/shallow_json.hpp"
#include "core/model/hugging_face_families.hpp"
#include "core/model/model_files.hpp"
#include "runtime/weights/draft_folder.hpp"
#include "runtime/weights/number_formats.hpp"
#include "runtime/weights/stored_shape.hpp"
#include "runtime/weights/weight_index.hpp"

namespace sextant {

nlohmann::ordered_json hugging_face_config(const ModelSpec&, StoredType, const ModelFamily&);

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array kTokenizerFiles = {"tokenizer.json",
                                        "tokenizer.model",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "chat_template.json"};
constexpr std::int64_t kNumbers = 1 << 22;  // numbers in memory at a time

// From here on a number rounds to infinity: the largest one and half of its last place.
double too_large(StoredType type) {
  switch (type) {
    case StoredType::f16:
      return 65520;
    case StoredType::bf16:
      return 0x1.ffp127;
    case StoredType::f32:
      return 0x1.ffffffp127;
    default:
      return HUGE_VAL;
  }
}

void require_free(const fs::path& out) {
  std::error_code none;
  if (!fs::exists(out, none)) return;
  if (!fs::is_directory(out, none) || !fs::is_empty(out, none))
    throw ConfigError(Problem{"--out", "", out.string(), "a folder that is absent or empty",
                              "nothing is overwritten: name another folder, or remove it"});
}

void copy_if_there(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::is_regular_file(from, error)) return;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (error) throw BackendError(fmt::format("cannot copy {}: {}", from.string(), error.message()));
}

// The configuration of the folder that the export is like, where its shape is the model's.
std::optional<Json> config_of_same_shape(const ModelSpec& model, const HuggingFaceExport& o) {
  std::error_code none;
  const fs::path file = o.like / "config.json";
  if (o.like.empty() || !fs::is_regular_file(file, none)) return std::nullopt;
  Json kept = json_or_discarded<Json>(read_text_file(file));
  if (!kept.is_object()) return std::nullopt;
  try {
    ModelSpec read = model_from_hugging_face(nlohmann::json(kept), model.name);
    read.name = model.name;
    read.max_positions = model.max_positions;
    if (read == model) return kept;
  } catch (const ConfigError&) {  // of another model: nothing is taken from it
  }
  return std::nullopt;
}

// Fields that say nothing of the shape (token ids and the like) survive where the shape is the same.
Json config_for(const ModelSpec& model, const ModelFamily& family, std::optional<Json> kept,
                const HuggingFaceExport& o) {
  Json fresh = hugging_face_config(model, o.type, family);
  if (o.like.empty()) return fresh;
  std::error_code none;
  const fs::path ids = o.like / "generation_config.json";
  if (!fs::is_regular_file(o.like / "config.json", none)) {
    if (!fs::is_regular_file(ids, none)) return fresh;
    const Json stated = json_or_discarded<Json>(read_text_file(ids));
    for (const char* key : {"bos_token_id", "eos_token_id"})
      if (stated.contains(key)) fresh[key] = stated[key];
    return fresh;
  }
  if (!kept || kept->contains("quantization_config")) return fresh;
  if (!kept->contains("architectures") || kept->at("architectures").empty())
    (*kept)["architectures"] = fresh["architectures"];
  // Under the name that it has there: transformers 5 writes dtype, older ones torch_dtype.
  const bool renamed = kept->contains("dtype");
  if (renamed) (*kept)["dtype"] = fresh["torch_dtype"];
  if (!renamed || kept->contains("torch_dtype")) (*kept)["torch_dtype"] = fresh["torch_dtype"];
  return *std::move(kept);
}

Json generation_config(const Json& config) {
  Json j = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (config.contains(key)) j[key] = config[key];
  return j;
}

std::vector<std::vector<StoredTensor>> cut_into_shards(std::vector<StoredTensor> tensors,
                                                       std::uint64_t max_bytes) {
  std::vector<std::vector<StoredTensor>> shards(1);
  std::uint64_t here = 0;
  for (StoredTensor& t : tensors) {
    const std::uint64_t bytes = t.end - t.begin;
    if (here + bytes > max_bytes && !shards.back().empty()) {
      shards.emplace_back();
      here = 0;
    }
    here += bytes;
    shards.back().push_back(std::move(t));
  }
  return shards;
}

// A tensor of the file: the runs of ours that it is made of, in its order.
struct Run {
  ModelSlice slice;                   // whole
  std::int64_t first = 0, count = 0;  // rows of it; elements where it has one row
  std::int64_t stored = 0;            // where they begin in the file's
};
struct Packed {
  StoredTensor tensor;
  std::vector<Run> runs;
};

std::vector<Packed> packed_tensors(const ModelSpec& model, const ModelFamily& family, StoredType type) {
  std::vector<Packed> all;
  for (const ModelSlice& s : model_tensors(model)) {
    const std::int64_t rows = is_row(s) ? s.model_cols : s.model_rows;
    const TensorPlace at = place_of(family, model, s.name, rows);
    auto packed = std::ranges::find_if(all, [&](const Packed& p) { return p.tensor.name == at.tensor; });
    if (packed == all.end()) {
      const std::int64_t elements = at.rows * (is_row(s) ? 1 : s.model_cols);
      packed = all.insert(all.end(), Packed{{.name = at.tensor,
                                             .type = type,
                                             .shape = stored_shape(s, at.rows),
                                             .begin = 0,
                                             .end = static_cast<std::uint64_t>(elements * size_bytes(type))},
                                            {}});
    }
    for (std::int64_t first = 0; first < rows; first += at.block)
      packed->runs.push_back({s, first, std::min(at.block, rows - first), at.row(first)});
  }
  for (Packed& p : all) std::ranges::sort(p.runs, {}, &Run::stored);
  return all;
}

// One run of a tensor, block by block of rows.
void write_run(SafetensorsWriter& writer, const WeightSource& weights, const Run& run, StoredType type,
               const std::function<void(std::uint64_t)>& advanced) {
  const double limit = too_large(type);
  const bool row = is_row(run.slice);
  const std::int64_t width = row ? 1 : run.slice.model_cols;
  const std::int64_t at_a_time = std::max<std::int64_t>(1, kNumbers / width);
  std::vector<double> values;
  std::vector<std::byte> bytes;
  for (std::int64_t done = 0; done < run.count; done += at_a_time) {
    ModelSlice block = run.slice;
    const std::int64_t n = std::min(at_a_time, run.count - done), first = run.first + done;
    (row ? block.first_col : block.first_row) = first;
    (row ? block.cols : block.rows) = n;
    values.resize(static_cast<std::size_t>(block.rows * block.cols));
    weights(block, values);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!(std::abs(values[i]) < limit)) {
        const auto at = static_cast<std::int64_t>(i);
        throw ConfigError(Problem{"--dtype", block.name,
                                  fmt::format("{} at [{}, {}]", values[i], row ? 0 : first + at / block.cols,
                                              row ? first + at : at % block.cols),
                                  fmt::format("numbers that {} can hold", torch_name(type)),
                                  "export in fp32"});
      }
    bytes.resize(values.size() * static_cast<std::size_t>(size_bytes(type)));
    encode_numbers(type, values, bytes);
    writer.append(bytes);
    advanced(bytes.size());
  }
}

// The family of the configuration that is kept, where there is one; otherwise the first that can say the model.
const ModelFamily& family_for(const ModelSpec& model, const std::optional<Json>& kept) {
  if (kept)
    if (const ModelFamily* family = family_of_config(nlohmann::json(*kept))) return *family;
  if (const ModelFamily* family = family_of(model)) return *family;
  throw ConfigError(Problem{"", "model", model.name, "a model of LLaMA's family",
                            "no architecture of transformers that is known here has all its features"});
}

}  // namespace

Json hugging_face_config(const ModelSpec& m, StoredType type) {
  return hugging_face_config(m, type, family_for(m, std::nullopt));
}

Json hugging_face_config(const ModelSpec& m, StoredType type, const ModelFamily& family) {
  Json rope = nullptr;
  if (m.rope_scaling) {
    const RopeScaling& s = *m.rope_scaling;
    rope = {{"rope_type", s.type}, {"factor", s.factor}};
    if (s.type == "llama3")
      rope.update(Json{{"low_freq_factor", s.low_freq_factor},
                       {"high_freq_factor", s.high_freq_factor},
                       {"original_max_position_embeddings", s.original_max_positions}});
    if (s.type == "yarn") {
      rope.update(Json{{"original_max_position_embeddings", s.original_max_positions},
                       {"beta_fast", s.beta_fast},
                       {"beta_slow", s.beta_slow}});
    }
    if (s.type == "longrope")
      rope.update(Json{{"original_max_position_embeddings", s.original_max_positions},
                       {"short_factor", s.short_factor},
                       {"long_factor", s.long_factor}});
    if (s.attention_factor > 0) rope["attention_factor"] = s.attention_factor;
  }
  const bool llama = family.model_type == "llama";
  const auto spelled = [&](std::string_view key) {
    for (const auto& [theirs, llamas] : family.keys)
      if (llamas == key) return std::string(theirs);
    return std::string(key);
  };
  Json j = {{"architectures", {family.classes.front()}}};
  if (family.bias == FamilyBias::as_stated || family.bias == FamilyBias::apart)
    j[spelled("attention_bias")] = m.qkv_bias;
  if (family.bias == FamilyBias::apart) j["attention_out_bias"] = m.output_bias;
  j.update(Json{{"attention_dropout", 0.0},
                {"head_dim", m.head_dim},
                {"hidden_act", "silu"},
                {"hidden_size", m.hidden},
                {"initializer_range", 0.02},
                {"intermediate_size", m.ffn_hidden},
                {spelled("max_position_embeddings"), m.max_positions}});
  if (family.mlp_bias) j["mlp_bias"] = m.mlp_bias;
  if (m.rope_scaling && family.original_positions_default > 0)
    j["original_max_position_embeddings"] = m.rope_scaling->original_max_positions;
  j.update(Json{{"model_type", family.model_type},
                {"num_attention_heads", m.n_heads},
                {"num_hidden_layers", m.n_layers},
                {"num_key_value_heads", m.n_kv_heads}});
  if (llama) j["pretraining_tp"] = 1;
  j.update(Json{{"rms_norm_eps", m.norm_eps}, {"rope_scaling", rope}, {"rope_theta", m.rope_theta}});
  if (family.window != FamilyWindow::never)
    j["sliding_window"] = m.window > 0 ? Json(m.window) : Json(nullptr);
  if (family.window == FamilyWindow::switched) {
    j["use_sliding_window"] = m.window > 0;
    j["max_window_layers"] = m.window > 0 ? 0 : m.n_layers;
  }
  j.update(Json{{"tie_word_embeddings", m.tied_embeddings},
                {"torch_dtype", torch_name(type)},
                {"use_cache", true},
                {"vocab_size", m.vocab_size}});
  if (m.normalized_head) j[std::string(family.normalized_head_key)] = 0;
  return j;
}

void keep_hugging_face_files(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::create_directories(to, error);
  if (error) throw BackendError(fmt::format("cannot make {}: {}", to.string(), error.message()));
  for (const char* file : {"config.json", "generation_config.json"}) copy_if_there(from / file, to / file);
  for (const char* file : kTokenizerFiles) copy_if_there(from / file, to / file);
}

ExportedWeights export_hugging_face(const ModelSpec& model, const WeightSource& weights, const fs::path& out,
                                    const HuggingFaceExport& o) {
  SEXTANT_CHECK(is_floating(o.type), "weights are floating-point numbers");
  require_free(out);
  std::optional<Json> kept = config_of_same_shape(model, o);
  const ModelFamily& family = family_for(model, kept);
  const Json config = config_for(model, family, std::move(kept), o);
  std::map<std::string, std::vector<Run>> runs;
  std::vector<StoredTensor> tensors;
  ExportedWeights done;
  for (Packed& p : packed_tensors(model, family, o.type)) {
    done.bytes += p.tensor.end;
    ++done.tensors;
    runs[p.tensor.name] = std::move(p.runs);
    tensors.push_back(std::move(p.tensor));
  }
  const auto shards = cut_into_shards(std::move(tensors), o.max_shard_bytes);

  DraftFolder draft(out);
  WeightIndex index;
  index.total_size = done.bytes;
  std::uint64_t written = 0;
  const auto advanced = [&](std::uint64_t bytes) {
    written += bytes;
    if (o.progress) o.progress(written, done.bytes);
  };
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shards.size() == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    SafetensorsWriter writer(draft.path() / file, shards[i], {{"format", "pt"}});
    for (const StoredTensor& t : shards[i]) {
      for (const Run& run : runs.at(t.name)) write_run(writer, weights, run, o.type, advanced);
      index.shard_of[t.name] = file;
    }
    writer.finish();
    done.files.push_back(file);
  }
  if (shards.size() > 1) write_file_atomic(draft.path() / "model.safetensors.index.json", to_text(index));
  if (!o.like.empty()) keep_hugging_face_files(o.like, draft.path());
  write_file_atomic(draft.path() / "config.json", config.dump(2) + "\n");
  std::error_code none;
  if (!fs::exists(draft.path() / "generation_config.json", none))
    write_file_atomic(draft.path() / "generation_config.json", generation_config(config).dump(2) + "\n");
  done.files.clear();
  for (const auto& entry : fs::directory_iterator(draft.path()))
    done.files.push_back(entry.path().filename().string());
  std::ranges::sort(done.files);
  draft.become(out);
  return done;
}

}  // namespace sextant
