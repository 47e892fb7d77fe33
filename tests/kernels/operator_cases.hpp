// The operator fixtures (tests/golden/operators, written by tests/reference/make_fixtures.py): cases by name,
// their parameters, and their tensors as matrices of the format under test.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/safetensors.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "tests/reference/matrix.hpp"

namespace sextant::testing {

inline constexpr double kBf16 = 1.0 / 128;  // its 8-bit mantissa

// What a kernel is tested as: a table and a product format, with the distance it is allowed.
struct Variant {
  const KernelTable* table;
  Dtype dtype;
  double bound;  // relative norm
};

inline std::vector<Variant> variants(double fp64_bound, double fp32_bound, double bf16_bound) {
  std::vector<Variant> all;
  for (const KernelTable* table : {&cpu_reference_kernels(), &cpu_kernels()}) {
    all.push_back({table, Dtype::fp64, fp64_bound});
    all.push_back({table, Dtype::fp32, fp32_bound});
    all.push_back({table, Dtype::bf16, bf16_bound});
  }
  return all;
}

class OperatorCase {
 public:
  OperatorCase(const SafetensorsFile& file, std::string name, nlohmann::json parameters, Variant variant)
      : file_(file), name_(std::move(name)), parameters_(std::move(parameters)), variant_(variant) {}

  const Variant& variant() const { return variant_; }
  Dtype dtype() const { return variant_.dtype; }
  Dtype accumulator() const { return accumulator_of(variant_.dtype); }
  template <class T>
  T parameter(const char* key) const {
    return parameters_.at(key).get<T>();
  }
  bool null(const char* key) const { return parameters_.at(key).is_null(); }

  std::vector<double> values(const std::string& key) const {
    const StoredTensor& t = tensor(key);
    const Matrix raw(*dtype_of(t.type), 1, t.elements());
    std::memcpy(raw.view().data, file_.bytes(t).data(), file_.bytes(t).size());
    return to_doubles(raw.view());
  }
  std::vector<std::int32_t> integers(const std::string& key) const {
    const StoredTensor& t = tensor(key);
    std::vector<std::int64_t> wide(static_cast<std::size_t>(t.elements()));
    std::memcpy(wide.data(), file_.bytes(t).data(), file_.bytes(t).size());
    return {wide.begin(), wide.end()};
  }
  // An input in the product format; `cols` 0 takes the last extent.
  Matrix input(const std::string& key, std::int64_t cols = 0) const { return matrix(key, dtype(), cols); }
  Matrix statistic(const std::string& key, std::int64_t cols = 0) const {
    return matrix(key, accumulator(), cols);
  }

  void expect_near(const TensorView& got, const std::string& key, double factor = 1.0) const {
    EXPECT_LT(relative_distance(to_doubles(got), values(key)), factor * variant_.bound)
        << label() << " " << key;
  }
  std::string label() const {
    return name_ + " " + std::string(sextant::name(variant_.dtype)) + " " + variant_.table->name;
  }

 private:
  const StoredTensor& tensor(const std::string& key) const { return file_.require(name_ + "." + key); }
  Matrix matrix(const std::string& key, Dtype dtype, std::int64_t cols) const {
    const StoredTensor& t = tensor(key);
    if (cols == 0) cols = t.shape.back();
    return {dtype, t.elements() / cols, cols, values(key)};
  }

  const SafetensorsFile& file_;
  std::string name_;
  nlohmann::json parameters_;
  Variant variant_;
};

inline std::filesystem::path operator_folder() {
  return std::filesystem::path(SEXTANT_SOURCE_DIR) / "tests/golden/operators";
}

// Runs `check` on every case of a file in every variant.
inline void for_each_case(const char* file_name, const std::vector<Variant>& all,
                          const std::function<void(const OperatorCase&)>& check) {
  const SafetensorsFile file(operator_folder() / (std::string(file_name) + ".safetensors"));
  const auto cases = nlohmann::json::parse(file.metadata().at("cases"));
  ASSERT_FALSE(cases.empty());
  for (const auto& [name, parameters] : cases.items())
    for (const Variant& variant : all) check(OperatorCase(file, name, parameters, variant));
}

}  // namespace sextant::testing
