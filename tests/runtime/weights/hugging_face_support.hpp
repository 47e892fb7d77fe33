// Checkpoints as transformers saved them (tests/golden/hugging_face, written by tests/reference/make_hugging_face.py), and
// copies of them to spoil.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "runtime/weights/hugging_face.hpp"
#include "runtime/weights/number_formats.hpp"
#include "runtime/weights/stored_shape.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::testing {

namespace fs = std::filesystem;

inline constexpr const char* kCheckpoints[] = {"untied-shards", "tied-bf16", "mqa-fp16"};
inline fs::path golden(const std::string& name) {
  return fs::path(SEXTANT_SOURCE_DIR) / "tests/golden/hugging_face" / name;
}

inline std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}
inline void write_text(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
}
inline void edit_json(const fs::path& file, const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json j = nlohmann::json::parse(text_of(file));
  change(j);
  write_text(file, j.dump());
}

// A folder of its own with the files of a golden one.
inline fs::path copy_of(const TempDir& to, const std::string& name) {
  fs::path folder = to.path() / name;
  fs::create_directory(folder);
  for (const auto& entry : fs::directory_iterator(golden(name)))
    fs::copy_file(entry.path(), folder / entry.path().filename());
  return folder;
}

inline std::string error_of(const std::function<void()>& act) {
  try {
    act();
    return "";
  } catch (const ConfigError& e) {
    return e.what();
  }
}

// All tensors of a folder of safetensors, by name: type, shape and bytes as they stand in the files.
struct RawTensor {
  StoredType type;
  std::vector<std::int64_t> shape;
  std::string bytes;
  bool operator==(const RawTensor&) const = default;
};
inline std::map<std::string, RawTensor> raw_tensors(const fs::path& folder) {
  std::map<std::string, RawTensor> all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with("model") || !file.ends_with(".safetensors")) continue;
    const SafetensorsFile from(entry.path());
    for (const StoredTensor& t : from.tensors()) {
      const auto bytes = from.bytes(t);
      all[t.name] = {t.type, t.shape, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
    }
  }
  return all;
}

inline std::vector<double> numbers(const SafetensorsFile& file, const std::string& tensor) {
  const StoredTensor& t = file.require(tensor);
  std::vector<double> values(static_cast<std::size_t>(t.elements()));
  decode_numbers(t.type, file.bytes(t), values);
  return values;
}
inline std::vector<std::int32_t> token_ids(const SafetensorsFile& file, const std::string& tensor) {
  const StoredTensor& t = file.require(tensor, StoredType::i64);
  std::vector<std::int64_t> wide(static_cast<std::size_t>(t.elements()));
  std::memcpy(wide.data(), file.bytes(t).data(), file.bytes(t).size());
  return {wide.begin(), wide.end()};
}

}  // namespace sextant::testing
