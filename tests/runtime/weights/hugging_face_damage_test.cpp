// System: checkpoint folders that are not what they say. Expectation: one message with file, tensor and what was expected;
// never a guess. The sound folder is accepted beside each.
#include <limits>

#include <gtest/gtest.h>

#include "runtime/weights/hugging_face_export.hpp"
#include "runtime/weights/weight_index.hpp"
#include "tests/runtime/weights/hugging_face_support.hpp"

namespace sextant::testing {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSecond = "model-00002-of-00004.safetensors";

class DamagedFolder : public ::testing::Test {
 protected:
  TempDir dir_;
  fs::path folder_ = copy_of(dir_, "untied-shards");

  static std::string judged(const fs::path& folder) {
    return error_of([&] { HuggingFaceFolder(folder).check(); });
  }
  void expect(std::initializer_list<const char*> words) const {
    const std::string error = judged(folder_);
    EXPECT_NE(error, "") << "accepted";
    for (const char* word : words)
      EXPECT_NE(error.find(word), std::string::npos) << word << " is not in\n" << error;
    EXPECT_LT(error.size(), 4000u);
  }
  // A shard written again with some tensors changed.
  void rewrite(const std::string& file,
               const std::function<void(std::vector<TensorToStore>&)>& change) const {
    const std::map<std::string, RawTensor> raw = [&] {
      std::map<std::string, RawTensor> all;
      const SafetensorsFile from(folder_ / file);
      for (const StoredTensor& t : from.tensors()) {
        const auto bytes = from.bytes(t);
        all[t.name] = {t.type, t.shape,
                       std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
      }
      return all;
    }();
    std::vector<TensorToStore> tensors;
    for (const auto& [name, t] : raw)
      tensors.push_back({name, t.type, t.shape, std::as_bytes(std::span(t.bytes))});
    change(tensors);
    write_safetensors(folder_ / file, tensors);
  }
  static TensorToStore& named(std::vector<TensorToStore>& tensors, const std::string& name) {
    const auto at = std::ranges::find(tensors, name, &TensorToStore::name);
    EXPECT_NE(at, tensors.end()) << name;
    return *at;
  }
  std::string a_tensor_of(const std::string& file) const {
    return SafetensorsFile(folder_ / file).tensors()[0].name;
  }
};

TEST_F(DamagedFolder, SoundOnesAreAccepted) {
  EXPECT_EQ(judged(folder_), "");
  rewrite(kSecond, [](auto&) {});
  EXPECT_EQ(judged(folder_), "") << "control: writing again is not damage";
}

TEST_F(DamagedFolder, MissingShard) {
  const std::string tensor = a_tensor_of(kSecond);
  fs::remove(folder_ / kSecond);
  expect({kSecond, "no such file"});
  // Whoever needs nothing of it can go on; whoever does is told which tensor.
  const HuggingFaceFolder lazy(folder_);
  int refused = 0;
  for (const ModelSlice& s : model_tensors(lazy.model())) {
    std::vector<double> values(static_cast<std::size_t>(s.rows * s.cols));
    const std::string error = error_of([&] { lazy.weights()(s, values); });
    if (error.empty()) continue;
    ++refused;
    EXPECT_NE(error.find(s.name), std::string::npos) << error;
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 10);
}

TEST_F(DamagedFolder, TruncatedShard) {
  const auto size = fs::file_size(folder_ / kSecond);
  for (const auto kept : {size - 1, size / 2, std::uintmax_t{100}, std::uintmax_t{7}, std::uintmax_t{0}}) {
    fs::resize_file(folder_ / kSecond, kept);
    expect({kSecond});
    fs::copy_file(golden("untied-shards") / kSecond, folder_ / kSecond, fs::copy_options::overwrite_existing);
    EXPECT_EQ(judged(folder_), "");
  }
}

TEST_F(DamagedFolder, ForeignShard) {
  fs::copy_file(golden("tied-bf16") / "model.safetensors", folder_ / kSecond,
                fs::copy_options::overwrite_existing);
  expect({kSecond});
}

TEST_F(DamagedFolder, WrongShape) {
  std::string tensor;
  rewrite(kSecond, [&](auto& tensors) {
    TensorToStore& t = *std::ranges::find_if(tensors, [](const auto& x) { return x.shape.size() == 2; });
    tensor = t.name;
    std::swap(t.shape[0], t.shape[1]);
    if (t.shape[0] == t.shape[1]) t.shape = {t.shape[0] * t.shape[1]};
  });
  expect({kSecond, tensor.c_str(), ".shape"});
}

TEST_F(DamagedFolder, WrongType) {
  std::string tensor;
  rewrite(kSecond, [&](auto& tensors) {
    tensor = tensors[0].name;
    tensors[0].type = StoredType::i32;
  });
  expect({kSecond, tensor.c_str(), "I32", "F64, F32, F16 or BF16"});
}

// As quantized checkpoints have them: one byte a number, scales beside, or packed into another shape.
TEST_F(DamagedFolder, EightBitsANumber) {
  std::string tensor;
  std::vector<std::byte> bytes;
  for (const StoredType type : {StoredType::f8_e4m3, StoredType::f8_e5m2, StoredType::i8, StoredType::u8}) {
    rewrite(kSecond, [&](auto& tensors) {
      TensorToStore& t = *std::ranges::find_if(tensors, [](const auto& x) { return x.shape.size() == 2; });
      tensor = t.name;
      t.type = type;
      if (type == StoredType::u8) t.shape[1] /= 2;
      bytes.assign(static_cast<std::size_t>(t.shape[0] * t.shape[1]), std::byte{0x38});
      t.data = bytes;
    });
    expect({kSecond, tensor.c_str(), ".dtype", name(type).data(), "F64, F32, F16 or BF16", "dequantize"});
    fs::copy_file(golden("untied-shards") / kSecond, folder_ / kSecond, fs::copy_options::overwrite_existing);
  }
  edit_json(folder_ / "config.json", [](auto& j) { j["quantization_config"] = {{"quant_method", "fp8"}}; });
  expect({"config.json", "quantization_config", "fp8", "F64, F32, F16 or BF16", "dequantize"});
}

TEST_F(DamagedFolder, TensorThatIsNotWhereTheIndexSays) {
  std::string tensor;
  rewrite(kSecond, [&](auto& tensors) {
    tensor = tensors[0].name;
    tensors.erase(tensors.begin());
  });
  expect({kSecond, tensor.c_str(), "a tensor of this name"});
}

TEST_F(DamagedFolder, TensorThatTheModelDoesNotHave) {
  static const std::vector<float> zeros(16);
  rewrite(kSecond, [](auto& tensors) {
    tensors.push_back(
        {"model.layers.0.self_attn.q_proj.bias", StoredType::f32, {16}, std::as_bytes(std::span(zeros))});
  });
  expect({kSecond, "q_proj.bias", "a model without it"});
  rewrite(kSecond, [](auto& tensors) {
    named(tensors, "model.layers.0.self_attn.q_proj.bias").name =
        "model.layers.0.self_attn.rotary_emb.inv_freq";
  });
  EXPECT_EQ(judged(folder_), "") << "old checkpoints hold frequencies; they say nothing";
}

TEST_F(DamagedFolder, TensorInTwoShards) {
  const std::string tensor = a_tensor_of(kSecond);
  const SafetensorsFile second(folder_ / kSecond);
  const StoredTensor& t = second.require(tensor);
  rewrite("model-00001-of-00004.safetensors", [&](auto& tensors) {
    tensors.push_back({t.name, t.type, t.shape, second.bytes(t)});
  });
  expect({"model-00001-of-00004.safetensors", tensor.c_str(), "a second copy"});
}

TEST_F(DamagedFolder, NumbersThatAreNotFinite) {
  static const std::vector<float> bad(16, std::numeric_limits<float>::quiet_NaN());
  std::string tensor;
  rewrite(kSecond, [&](auto& tensors) {
    auto& t = *std::ranges::find_if(tensors, [](const auto& x) { return x.shape.size() == 1; });
    tensor = t.name;
    t.data = std::as_bytes(std::span(bad));
  });
  const HuggingFaceFolder folder(folder_);
  bool told = false;
  for (const ModelSlice& s : model_tensors(folder.model())) {
    std::vector<double> values(static_cast<std::size_t>(s.rows * s.cols));
    const std::string error = error_of([&] { folder.weights()(s, values); });
    if (s.name != tensor) {
      EXPECT_EQ(error, "");
    }
    told = told || (error.find(tensor) != error.npos && error.find("finite") != error.npos);
  }
  EXPECT_TRUE(told);
}

TEST_F(DamagedFolder, HeadersThatLie) {
  const auto header = [&](const std::string& text, std::size_t data) {
    std::string file(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
    write_text(folder_ / kSecond, file + text + std::string(data, 'x'));
  };
  header(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
      12);
  expect({kSecond, "overlaps"});
  header(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
      12);
  expect({kSecond, "hole"});
  write_text(folder_ / kSecond, std::string(8, '\x7f') + "{}");
  expect({kSecond, "header length"});
}

TEST_F(DamagedFolder, Indexes) {
  const auto edit = [&](const std::function<void(nlohmann::json&)>& change) {
    fs::copy_file(golden("untied-shards") / kIndex, folder_ / kIndex, fs::copy_options::overwrite_existing);
    edit_json(folder_ / kIndex, change);
  };
  const std::string norm = "model.norm.weight";
  edit([&](auto& j) { j["weight_map"][norm] = "absent.safetensors"; });
  expect({"absent.safetensors", norm.c_str(), "no such file"});
  edit([&](auto& j) { j["weight_map"][norm] = "../elsewhere.safetensors"; });
  expect({kIndex, norm.c_str(), "without a path"});
  edit([&](auto& j) { j["weight_map"][norm] = "pytorch_model.bin"; });
  expect({kIndex, norm.c_str(), ".safetensors"});
  edit([&](auto& j) { j["weight_map"][norm] = 7; });
  expect({kIndex, norm.c_str(), "7"});
  edit([&](auto& j) { j["weight_map"].erase(norm); });
  expect({kIndex, norm.c_str(), "a tensor of this name"});
  edit([&](auto& j) { j["weight_map"] = nlohmann::json::array(); });
  expect({kIndex, "weight_map"});
  edit([&](auto& j) { j["metadata"]["total_size"] = "large"; });
  expect({kIndex, "total_size", "large"});
  write_text(folder_ / kIndex, "{\"weight_map\": {");
  expect({kIndex});
  write_text(folder_ / kIndex, "");
  expect({kIndex, "is empty"});
}

TEST_F(DamagedFolder, Configs) {
  const auto edit = [&](const std::function<void(nlohmann::json&)>& change) {
    fs::copy_file(golden("untied-shards") / "config.json", folder_ / "config.json",
                  fs::copy_options::overwrite_existing);
    edit_json(folder_ / "config.json", change);
  };
  edit([](auto& j) { j["num_hidden_layers"] = 3; });
  expect({"model.layers.2."});
  edit([](auto& j) { j["num_hidden_layers"] = 1; });
  expect({"model.layers.1.", "a model without it"});
  edit([](auto& j) { j["intermediate_size"] = 25; });
  expect({"mlp.up_proj.weight.shape", "[25, 16]"});
  edit([](auto& j) { j["tie_word_embeddings"] = true; });
  expect({"lm_head.weight", "tie_word_embeddings"});
  edit([](auto& j) { j["quantization_config"] = {{"bits", 4}}; });
  expect({"config.json", "quantization_config", "dequantize"});
  edit([](auto& j) { j["attention_bias"] = true; });
  expect({"model.layers.0.self_attn.q_proj.bias", "expected a tensor of this name"});
  edit([](auto& j) { j["model_type"] = "mixtral"; });
  expect({"config.json", "mixtral", "a mixture of experts"});
  edit([](auto& j) {
    j["model_type"] = "phi3";
    j["architectures"] = {"Phi3ForCausalLM"};
  });
  expect({"model.layers.0.self_attn.qkv_proj.weight", "expected a tensor of this name"});
}

TEST_F(DamagedFolder, OtherKindsOfFolder) {
  const fs::path empty = dir_.path() / "empty";
  fs::create_directory(empty);
  EXPECT_NE(judged(empty).find("no config.json"), std::string::npos);
  EXPECT_NE(judged(dir_.path() / "absent").find("a Hugging Face checkpoint folder"), std::string::npos);
  EXPECT_NE(judged(folder_ / "config.json").find("a file"), std::string::npos);
  write_text(empty / "consolidated.00.pth", "PK");
  EXPECT_NE(judged(empty).find("convert_llama_weights_to_hf"), std::string::npos);
  fs::copy_file(folder_ / "config.json", empty / "config.json");
  EXPECT_NE(judged(empty).find("convert_llama_weights_to_hf"), std::string::npos);
  fs::remove(empty / "consolidated.00.pth");
  write_text(empty / "pytorch_model.bin", "PK");
  EXPECT_NE(judged(empty).find("safe_serialization"), std::string::npos);
}

TEST_F(DamagedFolder, WeightsOfAnotherModel) {
  const HuggingFaceFolder folder(folder_);
  ModelSpec planned = folder.model();
  planned.name = "another name";
  planned.max_positions = 7;
  EXPECT_EQ(error_of([&] { require_same_model(folder, planned); }), "") << "neither matters";
  planned.n_kv_heads = 4;
  planned.rope_scaling.reset();
  const std::string error = error_of([&] { require_same_model(folder, planned); });
  for (const char* word :
       {"config.json", "num_key_value_heads", "found 2, expected 4", "rope_scaling", "llama3", "--model"})
    EXPECT_NE(error.find(word), std::string::npos) << word << '\n' << error;
}

TEST_F(DamagedFolder, ExportOverwritesNothing) {
  const HuggingFaceFolder folder(folder_);
  const fs::path out = dir_.path() / "out";
  const auto attempt = [&](const WeightSource& weights, StoredType type) {
    return error_of([&] { export_hugging_face(folder.model(), weights, out, {.type = type}); });
  };
  fs::create_directory(out);
  write_text(out / "note", "mine");
  EXPECT_NE(attempt(folder.weights(), StoredType::f32).find("absent or empty"), std::string::npos);
  EXPECT_EQ(text_of(out / "note"), "mine");
  fs::remove(out / "note");
  // Numbers that a format cannot hold: nothing is left behind.
  const WeightSource large = [](const ModelSlice&, std::span<double> values) {
    std::ranges::fill(values, 1e5);
  };
  const auto entries = dir_.files();
  EXPECT_NE(attempt(large, StoredType::f16).find("model.embed_tokens.weight"), std::string::npos);
  EXPECT_EQ(dir_.files(), entries);
  EXPECT_TRUE(fs::is_empty(out));
  EXPECT_EQ(attempt(large, StoredType::bf16), "");
  EXPECT_FALSE(fs::is_empty(out));
}

TEST(WeightIndexText, RoundTrip) {
  WeightIndex index;
  index.total_size = 12;
  index.shard_of = {{"a", "x.safetensors"}, {"b \"quoted\"", "y.safetensors"}};
  EXPECT_EQ(parse_weight_index(to_text(index), "here"), index);
  EXPECT_THROW(parse_weight_index(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", "here"),
               ConfigError)
      << "one name twice";
}

}  // namespace
}  // namespace sextant::testing
