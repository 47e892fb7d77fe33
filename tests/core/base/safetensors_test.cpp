// System: the safetensors reader on good and broken files. Expectation: what was written comes back byte for
// byte; every kind of damage is named with file, tensor and what was expected, never read.
#include "core/base/safetensors.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

class Safetensors : public ::testing::Test {
 protected:
  void write(const std::string& header, std::size_t data_bytes, std::uint64_t length) const {
    std::ofstream out(path_, std::ios::binary);
    for (int i = 0; i < 8; ++i) out.put(static_cast<char>(length >> (8 * i) & 0xff));
    out << header << std::string(data_bytes, 'x');
  }
  // Opens a file with this header and says what was wrong; empty when it opened.
  std::string refusal(const std::string& header, std::size_t data_bytes) const {
    write(header, data_bytes, header.size());
    return open_error();
  }
  std::string open_error() const {
    try {
      const SafetensorsFile file(path_);
      return "";
    } catch (const ConfigError& e) {
      EXPECT_EQ(e.problems().front().file, path_.string());
      return e.what();
    }
  }
  void expect_refused(const std::string& header, std::size_t data_bytes, const std::string& words) const {
    const std::string text = refusal(header, data_bytes);
    EXPECT_NE(text.find(words), std::string::npos) << "header " << header << "\ngave: " << text;
  }

  TempDir dir_;
  std::filesystem::path path_ = dir_.path() / "model.safetensors";
};

TEST_F(Safetensors, RoundTrip) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int64_t> b = {-7};
  const std::vector<TensorToStore> tensors = {
      {"layer.weight", StoredType::f32, {2, 3}, std::as_bytes(std::span(a))},
      {"empty", StoredType::bf16, {0, 4}, {}},
      {"step", StoredType::i64, {}, std::as_bytes(std::span(b))},
  };
  write_safetensors(path_, tensors, {{"format", "pt"}});
  const SafetensorsFile file(path_);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const TensorToStore& t : tensors) {
    const StoredTensor& read = file.require(t.name, t.type);
    EXPECT_EQ(read.shape, t.shape);
    const auto bytes = file.bytes(read);
    ASSERT_EQ(bytes.size(), t.data.size());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), t.data.begin()));
  }
  EXPECT_EQ(file.require("step").elements(), 1);
  std::ifstream raw(path_, std::ios::binary);
  std::uint64_t length = 0;
  raw.read(reinterpret_cast<char*>(&length), 8);
  EXPECT_EQ(length % 8, 0u) << "data must start aligned";
}

TEST_F(Safetensors, AskingForTheWrongTensorNamesIt) {
  const std::vector<float> a(6);
  const TensorToStore t{"model.norm.weight", StoredType::f32, {2, 3}, std::as_bytes(std::span(a))};
  write_safetensors(path_, {&t, 1});
  const SafetensorsFile file(path_);
  const auto error = [&](auto&& ask) -> std::string {
    try {
      ask();
      return "";
    } catch (const ConfigError& e) {
      return e.what();
    }
  };
  EXPECT_NE(error([&] { file.require("model.nrom.weight"); }).find("did you mean model.norm.weight"),
            std::string::npos);
  EXPECT_NE(error([&] { file.require(t.name, StoredType::bf16); }).find("found F32, expected BF16"),
            std::string::npos);
  const std::vector<std::int64_t> shape = {3, 2};
  EXPECT_NE(error([&] { file.require(t.name, {}, shape); }).find("found [2, 3], expected [3, 2]"),
            std::string::npos);
  EXPECT_EQ(error([&] { file.require(t.name, StoredType::f32, t.shape); }), "");
}

TEST(StoredTypes, NamesOfFilesAndOfTorch) {
  for (int i = 0; i <= static_cast<int>(StoredType::f8_e5m2); ++i) {
    const auto type = static_cast<StoredType>(i);
    EXPECT_EQ(stored_type_from_name(name(type)), type);
    EXPECT_EQ(stored_type_from_name(torch_name(type)), type);
  }
  EXPECT_EQ(torch_name(StoredType::bf16), "bfloat16");
  EXPECT_EQ(torch_name(StoredType::f8_e4m3), "float8_e4m3fn");
  EXPECT_EQ(stored_type_from_name("float"), std::nullopt);
}

TEST_F(Safetensors, SoundFilesAreAccepted) {
  EXPECT_EQ(refusal("{}", 0), "");
  EXPECT_EQ(refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}      )", 8), "");
  EXPECT_EQ(
      refusal(
          R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})",
          11),
      "");
}

TEST_F(Safetensors, DamageIsNamed) {
  const auto one = [](const std::string& entry) { return "{\"a\":" + entry + "}"; };
  expect_refused(
      one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]})"),
      12, "overlaps");
  expect_refused(
      one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]})"),
      12, "hole");
  expect_refused(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), 9, "where the last tensor ends");
  expect_refused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 7, "where the file ends");
  expect_refused(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), 8, "12 bytes for F32 [3]");
  expect_refused(one(R"({"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,8]})"), 8,
                 "the bytes of F32 or I32: dtype, shape or data_offsets is wrong");
  expect_refused(one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), 8, "a.dtype");
  expect_refused(one(R"({"dtype":"F8_E8M0","shape":[8],"data_offsets":[0,8]})"), 8, "F8_E8M0");
  expect_refused(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), 8, "a.shape");
  expect_refused(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), 0,
                 "63 bits");
  expect_refused(one(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"), 0, "63 bits");
  expect_refused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), 8, "[begin, end]");
  expect_refused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8.0]})"), 8, "[begin, end]");
  expect_refused(one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), 8, "a list of extents");
  expect_refused(one(R"({"dtype":"F32","shape":[2]})"), 8, "data_offsets");
  expect_refused(one("7"), 0, "an object with dtype");
  expect_refused(
      one(R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})"),
      0, "each name once");
  expect_refused(R"({"__metadata__":{"a":1}})", 0, "a string");
  expect_refused("[]", 0, "a JSON object");
  expect_refused("{\"a\":", 0, "header, byte 5: found its end, expected a JSON object of tensors");
  expect_refused("{\"a\" \x01\"b\"}", 0,
                 "header, byte 5: found '?\"b\"}', expected a JSON object of tensors");
  expect_refused(one(R"({"dtype":"F32","shape":[1e999],"data_offsets":[0,8]})"), 8, "beyond all bounds");
  EXPECT_EQ(refusal("{\"a\":", 0).find("json.exception"), std::string::npos) << "in our words";
  // Whoever prints or copies such a value calls itself once for each level.
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  expect_refused(one(R"({"dtype":"F32","shape":[2],"data_offsets":)" + deep + "}"), 8,
                 "nested more than 200 levels deep");
}

// Larger than any address space: what is wrong with it is told without a byte of it mapped.
TEST_F(Safetensors, AHoleOfManyTerabytesIsNamed) {
  write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8, 54);
  ASSERT_EQ(open_error(), "");
  std::error_code error;
  std::filesystem::resize_file(path_, std::uintmax_t{8} << 40, error);
  if (error) GTEST_SKIP() << "this file system has no files of 8 TiB";
  EXPECT_NE(open_error().find("where the last tensor ends"), std::string::npos) << open_error();
}

TEST_F(Safetensors, LengthsThatLie) {
  write("{}", 0, 100'000'001);
  EXPECT_NE(open_error().find("at most 100000000"), std::string::npos);
  write("{}", 0, ~std::uint64_t{0});
  EXPECT_NE(open_error().find("header length"), std::string::npos);
  write("{}", 0, 3);
  EXPECT_NE(open_error().find("truncated"), std::string::npos);
  write("{}", 0, std::uint64_t{2} << 56);  // written big-endian
  EXPECT_NE(open_error().find("not safetensors"), std::string::npos);
  std::ofstream(path_) << "short";
  EXPECT_NE(open_error().find("truncated"), std::string::npos);
  std::filesystem::remove(path_);
  EXPECT_NE(open_error(), "");
}

// A good file cut at any byte, and with any one header byte changed to a digit, either opens with every
// tensor inside the file or is refused; it is never read beyond its end.
TEST_F(Safetensors, EveryTruncationAndManyMutations) {
  const std::vector<float> a(5, 1.0f);
  const std::vector<TensorToStore> tensors = {
      {"a", StoredType::f32, {2}, std::as_bytes(std::span(a)).first(8)},
      {"b", StoredType::f32, {3}, std::as_bytes(std::span(a)).first(12)}};
  write_safetensors(path_, tensors);
  std::ifstream in(path_, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  for (std::size_t n = 0; n < good.size(); ++n) {
    std::ofstream(path_, std::ios::binary) << good.substr(0, n);
    EXPECT_NE(open_error(), "") << "cut at " << n;
  }
  for (std::size_t i = 0; i + 20 < good.size(); ++i)
    for (const char c : {'0', '9', '}', '\0', '\xff'}) {
      std::string bad = good;
      bad[i] = c;
      std::ofstream(path_, std::ios::binary) << bad;
      try {
        const SafetensorsFile file(path_);
        for (const StoredTensor& t : file.tensors()) EXPECT_LE(t.end, 20u);
      } catch (const ConfigError&) {
      }
    }
}

}  // namespace
}  // namespace sextant
