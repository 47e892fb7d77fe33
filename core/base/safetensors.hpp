// Safetensors files (github.com/huggingface/safetensors): 8 bytes of header length, a JSON header of names,
// formats, shapes and byte ranges, then the data. The reader maps the file and trusts nothing in it: every
// tensor's range must fit its shape, and together they must cover the data without overlap or hole.
// ConfigError names file, tensor and expectation, all problems at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.hpp"

namespace sextant {

enum class StoredType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2
};
std::string_view name(StoredType);        // as in files: "F64", "BF16", "I64", ...
std::string_view torch_name(StoredType);  // as in config.json: "float64", "bfloat16", "int64", ...
std::optional<StoredType> stored_type_from_name(std::string_view);  // either of them
int size_bytes(StoredType);
std::optional<Dtype> dtype_of(StoredType);  // of floating-point formats
StoredType stored_type(Dtype);              // tf32 is stored as F32

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes after the header
  std::int64_t elements() const;
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path);  // throws ConfigError
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::vector<StoredTensor>& tensors() const;  // in order of their data
  const std::map<std::string, std::string>& metadata() const;
  const StoredTensor* find(std::string_view tensor) const;  // null when absent

  // Throws ConfigError when absent (with a suggestion), of another type, or, unless empty, of another shape.
  const StoredTensor& require(std::string_view tensor, std::optional<StoredType> type = {},
                              std::span<const std::int64_t> shape = {}) const;
  std::span<const std::byte> bytes(const StoredTensor&) const;  // lives as long as this file

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A tensor to be written; `data` must hold shape x type bytes.
struct TensorToStore {
  std::string name;
  StoredType type = StoredType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

// Writes and flushes to disk (fsync); replaces an existing file. The data starts at a multiple of 8 bytes.
// Throws BackendError when the disk refuses.
void write_safetensors(const std::filesystem::path&, std::span<const TensorToStore>,
                       const std::map<std::string, std::string>& metadata = {});

// The same for tensors that are never in memory together: declared whole, then their data in that order, in pieces of any
// size.
class SafetensorsWriter {
 public:
  // `begin` and `end` of the tensors are found here.
  SafetensorsWriter(std::filesystem::path, std::span<const StoredTensor>,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;

  void append(std::span<const std::byte>);
  void finish();  // all declared bytes must have come; flushes to disk
  std::uint64_t file_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sextant
