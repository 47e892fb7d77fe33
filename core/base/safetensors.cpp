#include "core/base/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "core/base/file_descriptor.hpp"
#include "core/base/mapped_range.hpp"
#include "core/base/shallow_json.hpp"

namespace sextant {
namespace {

constexpr std::uint64_t kLongestHeader = 100'000'000;  // bytes; the reference implementation's limit

struct TypeRow {
  StoredType type;
  std::string_view name, torch;
  int bytes;
  std::optional<Dtype> dtype;
};
constexpr std::array<TypeRow, 12> kTypes = {{{StoredType::f64, "F64", "float64", 8, Dtype::fp64},
                                             {StoredType::f32, "F32", "float32", 4, Dtype::fp32},
                                             {StoredType::f16, "F16", "float16", 2, Dtype::fp16},
                                             {StoredType::bf16, "BF16", "bfloat16", 2, Dtype::bf16},
                                             {StoredType::i64, "I64", "int64", 8, {}},
                                             {StoredType::i32, "I32", "int32", 4, {}},
                                             {StoredType::i16, "I16", "int16", 2, {}},
                                             {StoredType::i8, "I8", "int8", 1, {}},
                                             {StoredType::u8, "U8", "uint8", 1, {}},
                                             {StoredType::boolean, "BOOL", "bool", 1, {}},
                                             {StoredType::f8_e4m3, "F8_E4M3", "float8_e4m3fn", 1, Dtype::fp8},
                                             {StoredType::f8_e5m2, "F8_E5M2", "float8_e5m2", 1, {}}}};

const TypeRow& row_of(StoredType type) { return kTypes[static_cast<std::size_t>(type)]; }

std::string printable_name(std::string_view bytes) {
  std::string text = "'";
  for (const char c : bytes) text += c >= ' ' && c <= '~' ? c : '?';
  return text + "'";
}

// nlohmann keeps the last of equal keys; a file with two tensors of one name is refused instead.
nlohmann::json parse_header(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> open;
  std::string duplicate;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (depth > static_cast<int>(kMostJsonLevels))
      throw ConfigError(Problem{file, "header",
                                fmt::format("nested more than {} levels deep", kMostJsonLevels),
                                "a JSON object of tensors", "the file is damaged or not safetensors"});
    if (event == nlohmann::json::parse_event_t::object_start) open.emplace_back();
    if (event == nlohmann::json::parse_event_t::object_end) open.pop_back();
    if (event == nlohmann::json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second)
      duplicate = value.get<std::string>();
    return true;
  };
  nlohmann::json header;
  try {
    header = nlohmann::json::parse(text, watch);
  } catch (const nlohmann::json::parse_error& e) {
    // The parser names the byte behind what it could not take.
    const std::size_t at = std::min(std::max<std::size_t>(e.byte, 1) - 1, text.size());
    throw ConfigError(Problem{file, fmt::format("header, byte {}", at),
                              at < text.size() ? printable_name(text.substr(at, 24)) : "its end",
                              "a JSON object of tensors", "the file is damaged or not safetensors"});
  } catch (const nlohmann::json::exception&) {  // what is JSON, and no number that could be held
    throw ConfigError(Problem{file, "header", "a number beyond all bounds", "counts of up to 63 bits",
                              "the file is damaged or not safetensors"});
  }
  if (!header.is_object())
    throw ConfigError(Problem{file, "header", header.type_name(), "a JSON object", {}});
  if (!duplicate.empty()) throw ConfigError(Problem{file, duplicate, "twice", "each name once", {}});
  return header;
}

// A count that fits 63 bits, or nothing.
std::optional<std::uint64_t> as_count(const nlohmann::json& j) {
  if (!j.is_number_unsigned()) return {};
  const auto value = j.get<std::uint64_t>();
  return value <= static_cast<std::uint64_t>(INT64_MAX) ? std::optional(value) : std::nullopt;
}

// Which formats the bytes would fit, when dtype says another.
std::string fits_better(std::uint64_t bytes, std::uint64_t elements) {
  std::string names;
  for (const TypeRow& row : kTypes)
    if (elements > 0 && bytes / elements == static_cast<std::uint64_t>(row.bytes) && bytes % elements == 0)
      names += fmt::format("{}{}", names.empty() ? "" : " or ", row.name);
  return names.empty()
             ? ""
             : fmt::format("they are the bytes of {}: dtype, shape or data_offsets is wrong", names);
}

// One header entry; problems go to the list, and the tensor is returned only when it has none.
std::optional<StoredTensor> read_entry(const std::string& file, const std::string& tensor,
                                       const nlohmann::json& entry, std::uint64_t data_bytes,
                                       std::vector<Problem>& problems) {
  const auto refuse = [&](std::string_view key, std::string value, std::string expected,
                          std::string hint = "") {
    problems.push_back({file, key.empty() ? tensor : fmt::format("{}.{}", tensor, key), std::move(value),
                        std::move(expected), std::move(hint)});
    return std::nullopt;
  };
  if (!entry.is_object()) return refuse("", entry.dump(), "an object with dtype, shape and data_offsets");
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!entry.contains(key)) return refuse(key, "nothing", "a value");

  StoredTensor t;
  t.name = tensor;
  const auto row =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return entry["dtype"] == r.name; });
  if (row == kTypes.end())
    return refuse("dtype", entry["dtype"].dump(),
                  "F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, I16, I8, U8 or BOOL",
                  "save it in one of them: in Python, tensor.to(torch.bfloat16)");
  t.type = row->type;

  if (!entry["shape"].is_array()) return refuse("shape", entry["shape"].dump(), "a list of extents");
  std::uint64_t elements = 1;
  for (const auto& extent : entry["shape"]) {
    const auto count = as_count(extent);
    if (!count || __builtin_mul_overflow(elements, *count, &elements))
      return refuse("shape", entry["shape"].dump(), "extents whose product fits 63 bits");
    t.shape.push_back(static_cast<std::int64_t>(*count));
  }
  std::uint64_t size = 0;
  if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(row->bytes), &size) || size > INT64_MAX)
    return refuse("shape", entry["shape"].dump(), "extents whose product fits 63 bits");

  const auto& offsets = entry["data_offsets"];
  const auto begin = offsets.is_array() && offsets.size() == 2 ? as_count(offsets[0]) : std::nullopt;
  const auto end = begin ? as_count(offsets[1]) : std::nullopt;
  if (!begin || !end || *begin > *end) return refuse("data_offsets", offsets.dump(), "[begin, end]");
  if (*end > data_bytes)
    return refuse("data_offsets", offsets.dump(), fmt::format("at most {}, where the file ends", data_bytes));
  if (*end - *begin != size)
    return refuse("data_offsets", offsets.dump(),
                  fmt::format("{} bytes for {} {}", size, row->name, entry["shape"].dump()),
                  fits_better(*end - *begin, elements));
  t.begin = *begin;
  t.end = *end;
  return t;
}

// Tensors in order of their data; every byte of the data belongs to exactly one.
void check_cover(const std::string& file, std::vector<StoredTensor>& tensors, std::uint64_t data_bytes,
                 std::vector<Problem>& problems) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t at = 0;
  for (const StoredTensor& t : tensors) {
    if (t.begin != at)
      problems.push_back(
          {file,
           t.name + ".data_offsets",
           fmt::format("begin {}", t.begin),
           fmt::format("begin {}: {}", at,
                       t.begin < at ? "it overlaps another tensor" : "there is a hole before it"),
           {}});
    at = std::max(at, t.end);
  }
  if (problems.empty() && at != data_bytes)
    problems.push_back({file,
                        "data",
                        fmt::format("{} bytes", data_bytes),
                        fmt::format("{} bytes, where the last tensor ends", at),
                        {}});
}

std::uint64_t bytes_of(const StoredTensor& t) {
  return static_cast<std::uint64_t>(t.elements() * size_bytes(t.type));
}

std::string system_error(std::string_view what, const std::filesystem::path& path) {
  return fmt::format("{} {}: {}", what, path.string(), std::strerror(errno));
}

}  // namespace

std::string_view name(StoredType type) { return row_of(type).name; }
std::string_view torch_name(StoredType type) { return row_of(type).torch; }
std::optional<StoredType> stored_type_from_name(std::string_view text) {
  for (const TypeRow& row : kTypes)
    if (text == row.name || text == row.torch) return row.type;
  return std::nullopt;
}
int size_bytes(StoredType type) { return row_of(type).bytes; }
std::optional<Dtype> dtype_of(StoredType type) { return row_of(type).dtype; }

StoredType stored_type(Dtype dtype) {
  if (dtype == Dtype::tf32) return StoredType::f32;
  return std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return r.dtype == dtype; })->type;
}

std::int64_t StoredTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

struct SafetensorsFile::Impl {
  std::filesystem::path path;
  MappedRange mapping;
  std::uint64_t data_start = 0;
  std::vector<StoredTensor> tensors;
  std::map<std::string, const StoredTensor*, std::less<>> by_name;
  std::map<std::string, std::string> metadata;
};

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : impl_(std::make_unique<Impl>()) {
  const std::string file = path.string();
  impl_->path = std::move(path);
  const FileDescriptor d(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (d.get() < 0 || ::fstat(d.get(), &info) != 0 || !S_ISREG(info.st_mode))
    throw ConfigError(Problem{
        file, {}, d.get() < 0 ? std::strerror(errno) : "not a regular file", "a safetensors file", {}});
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size < 8)
    throw ConfigError(
        Problem{file, "size", fmt::format("{} bytes", size), "at least 8 bytes", "the file is truncated"});
  std::array<unsigned char, 8> written{};
  if (::pread(d.get(), written.data(), written.size(), 0) != static_cast<ssize_t>(written.size()))
    throw BackendError(system_error("cannot read", impl_->path));
  std::uint64_t length = 0;  // little-endian by the format
  for (int i = 7; i >= 0; --i) length = length << 8 | written[static_cast<std::size_t>(i)];
  if (length > kLongestHeader)
    throw ConfigError(Problem{file, "header length", fmt::format("{} bytes", length),
                              fmt::format("at most {} bytes", kLongestHeader),
                              "the file is not safetensors"});
  if (length > size - 8)
    throw ConfigError(Problem{file, "header length", fmt::format("{} bytes", length),
                              fmt::format("at most {}, where the file ends", size - 8),
                              "the file is truncated"});
  impl_->data_start = 8 + length;
  const std::uint64_t data_bytes = size - impl_->data_start;

  const MappedRange head(d.get(), impl_->data_start, impl_->path);
  if (!head) throw BackendError(system_error("cannot map", impl_->path));
  const nlohmann::json header =
      parse_header({reinterpret_cast<const char*>(head.bytes().data()) + 8, length}, file);
  std::vector<Problem> problems;
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      if (!entry.is_object()) problems.push_back({file, key, entry.dump(), "an object of strings", {}});
      for (const auto& [k, v] : entry.items()) {
        if (v.is_string())
          impl_->metadata[k] = v.get<std::string>();
        else
          problems.push_back({file, key + "." + k, v.dump(), "a string", {}});
      }
    } else if (auto t = read_entry(file, key, entry, data_bytes, problems)) {
      impl_->tensors.push_back(std::move(*t));
    }
  }
  if (problems.empty()) check_cover(file, impl_->tensors, data_bytes, problems);
  if (!problems.empty()) throw ConfigError(std::move(problems));
  // Only now: a file with a hole at its end may be larger than the address space.
  impl_->mapping = MappedRange(d.get(), size, impl_->path);
  if (!impl_->mapping) throw BackendError(system_error("cannot map", impl_->path));
  for (const StoredTensor& t : impl_->tensors) impl_->by_name[t.name] = &t;
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::vector<StoredTensor>& SafetensorsFile::tensors() const { return impl_->tensors; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return impl_->metadata; }

const StoredTensor* SafetensorsFile::find(std::string_view tensor) const {
  const auto it = impl_->by_name.find(tensor);
  return it == impl_->by_name.end() ? nullptr : it->second;
}

const StoredTensor& SafetensorsFile::require(std::string_view tensor, std::optional<StoredType> type,
                                             std::span<const std::int64_t> shape) const {
  const std::string file = impl_->path.string();
  const StoredTensor* t = find(tensor);
  if (!t) {
    std::vector<std::string> names;
    for (const StoredTensor& other : impl_->tensors) names.push_back(other.name);
    const std::string near = closest(tensor, names);
    throw ConfigError(Problem{file, std::string(tensor), "nothing", "a tensor of this name",
                              near.empty() ? "" : fmt::format("did you mean {}?", near)});
  }
  if (type && t->type != *type)
    throw ConfigError(
        Problem{file, t->name + ".dtype", std::string(name(t->type)), std::string(name(*type)), {}});
  if (!shape.empty() && !std::ranges::equal(t->shape, shape))
    throw ConfigError(Problem{file,
                              t->name + ".shape",
                              fmt::format("[{}]", fmt::join(t->shape, ", ")),
                              fmt::format("[{}]", fmt::join(shape, ", ")),
                              {}});
  return *t;
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& t) const {
  return impl_->mapping.bytes().subspan(impl_->data_start + t.begin, t.end - t.begin);
}

struct SafetensorsWriter::Impl {
  std::filesystem::path path;
  FileDescriptor d;
  std::uint64_t header_bytes = 0, data_bytes = 0, written = 0;

  explicit Impl(std::filesystem::path where)
      : path(std::move(where)), d(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (d.get() < 0) throw BackendError(system_error("cannot write", path));
  }
  void put(const void* data, std::size_t size) const {
    const char* from = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t n = ::write(d.get(), from, size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw BackendError(system_error("cannot write", path));
      from += n;
      size -= static_cast<std::size_t>(n);
    }
  }
};

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::span<const StoredTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : impl_(std::make_unique<Impl>(std::move(path))) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string_view> names;
  for (const StoredTensor& t : tensors) {
    SEXTANT_CHECK(names.insert(t.name).second, fmt::format("{}: stored twice", t.name));
    const std::uint64_t bytes = bytes_of(t);
    const std::uint64_t at = impl_->data_bytes;
    header[t.name] = {{"dtype", name(t.type)}, {"shape", t.shape}, {"data_offsets", {at, at + bytes}}};
    impl_->data_bytes += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::array<char, 8> length{};
  for (int i = 0; i < 8; ++i)
    length[static_cast<std::size_t>(i)] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  impl_->header_bytes = length.size() + text.size();
  impl_->put(length.data(), length.size());
  impl_->put(text.data(), text.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;

std::uint64_t SafetensorsWriter::file_bytes() const { return impl_->header_bytes + impl_->data_bytes; }

void SafetensorsWriter::append(std::span<const std::byte> data) {
  SEXTANT_CHECK(data.size() <= impl_->data_bytes - impl_->written, "more data than declared");
  impl_->put(data.data(), data.size());
  impl_->written += data.size();
}

void SafetensorsWriter::finish() {
  SEXTANT_CHECK(impl_->written == impl_->data_bytes, "less data than declared");
  if (::fsync(impl_->d.get()) != 0) throw BackendError(system_error("cannot flush", impl_->path));
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToStore> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<StoredTensor> declared;
  for (const TensorToStore& t : tensors) {
    declared.push_back({.name = t.name, .type = t.type, .shape = t.shape, .begin = 0, .end = 0});
    SEXTANT_CHECK(bytes_of(declared.back()) == t.data.size(),
                  fmt::format("{}: data does not fill the shape", t.name));
  }
  SafetensorsWriter writer(path, declared, metadata);
  for (const TensorToStore& t : tensors) writer.append(t.data);
  writer.finish();
}

}  // namespace sextant
