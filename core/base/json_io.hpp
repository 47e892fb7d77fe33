// JSON to values and back. A struct lists its fields once, for both directions:
//
//   constexpr auto kFields = [](auto& io, auto& t) {
//     io.required("seq_len", t.seq_len, at_least(1));
//     io.optional("latency_us", t.latency);              // Seconds: the unit is the key's suffix
//     io.optional("compute", t.compute, kDtypeNames);    // an enum by its names
//   };
//   void to_json(nlohmann::json& j, const T& t) { write_object(j, t, kFields); }
//   void from_json(const nlohmann::json& j, T& t) { read_object(j, t, kFields); }
//
// Fields may be bool, integers, double, string, enums, the quantities of core/base/units.hpp, vectors, arrays,
// optionals and maps of these, and any type with a from_json / to_json of its own. Reading collects every
// problem (missing, wrong type, out of range, not finite, unknown key with a suggestion) with its JSON path
// and throws them together. Units by suffix: _s _ms _us, _GBps, _TFLOPS, _GiB _MiB _bytes.
#pragma once

#include <array>
#include <concepts>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/error.hpp"
#include "core/base/units.hpp"

namespace sextant {

// What a number may be, in the unit of its key.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool least_excluded = false;
};
constexpr Range at_least(double least) { return {.least = least}; }
constexpr Range above(double least) { return {.least = least, .least_excluded = true}; }
constexpr Range between(double least, double most) { return {.least = least, .most = most}; }

class JsonReader {
 public:
  explicit JsonReader(const nlohmann::json& object);

  template <class T, class... Rules>
  void required(std::string_view key, T& out, const Rules&... rules) {
    if (const nlohmann::json* value = take(key, true)) read(*value, std::string(key), out, rules...);
  }
  // An absent field, or null, leaves `out` as it is.
  template <class T, class... Rules>
  void optional(std::string_view key, T& out, const Rules&... rules) {
    if (const nlohmann::json* value = take(key, false)) read(*value, std::string(key), out, rules...);
  }
  // Keys that are allowed and say nothing to the program: source, date, note.
  void ignored(std::string_view key) { take(key, false); }

  // For files of other programs: unknown keys are let pass, unless one looks like a slip of a field that is
  // absent.
  void others_allowed() { others_allowed_ = true; }

  bool has(std::string_view key) const;
  void fail(Problem);
  // Throws when anything was wrong: what reading found, unknown keys, and those of `more` (a validate() of
  // the value) whose field was read without a problem.
  void finish(std::vector<Problem> more = {});

 private:
  using json = nlohmann::json;
  const json* take(std::string_view key, bool required);
  void report_unknown_keys();
  void wrong(const json& found, const std::string& path, std::string expected, std::string hint = "");
  void nested(const std::string& path, const std::function<void()>& read_it);

  void read(const json&, const std::string& path, bool& out);
  void read(const json&, const std::string& path, std::string& out);
  void read(const json&, const std::string& path, double& out, Range = {});
  template <std::integral T>
  void read(const json& value, const std::string& path, T& out, Range range = {}) {
    if (const auto n =
            integer(value, path, std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), range))
      out = static_cast<T>(*n);
  }
  template <class Tag>
  void read(const json& value, const std::string& path, Quantity<Tag, double>& out, Range range = {}) {
    if (const auto x = quantity(value, path, range)) out.v = *x;
  }
  void read(const json&, const std::string& path, Bytes& out, Range = {});
  template <class E, std::size_t N>
  requires std::is_enum_v<E>
  void read(const json& value, const std::string& path, E& out,
            const std::array<std::string_view, N>& names) {
    if (const int i = name_index(value, path, names.data(), N); i >= 0) out = static_cast<E>(i);
  }
  template <class T, class... Rules>
  void read(const json& value, const std::string& path, std::optional<T>& out, const Rules&... rules) {
    read(value, path, out.emplace(), rules...);
  }
  template <class T, class... Rules>
  void read(const json& value, const std::string& path, std::vector<T>& out, const Rules&... rules) {
    const auto items = elements(value, path);
    out.assign(items.size(), T{});
    for (std::size_t i = 0; i < items.size(); ++i)
      read(*items[i], path + "[" + std::to_string(i) + "]", out[i], rules...);
  }
  template <class T, std::size_t N, class... Rules>
  void read(const json& value, const std::string& path, std::array<T, N>& out, const Rules&... rules) {
    const auto items = elements(value, path, N);
    for (std::size_t i = 0; i < items.size(); ++i)
      read(*items[i], path + "[" + std::to_string(i) + "]", out[i], rules...);
  }
  template <class T, class... Rules>
  void read(const json& value, const std::string& path, std::map<std::string, T>& out,
            const Rules&... rules) {
    out.clear();
    for (const auto& [key, item] : members(value, path)) read(*item, path + "." + key, out[key], rules...);
  }
  // A map from an enum: {"bf16": 989.4}; its unit is the suffix of the map's key.
  template <class E, class T, std::size_t N, class... Rules>
  requires std::is_enum_v<E>
  void read(const json& value, const std::string& path, std::map<E, T>& out,
            const std::array<std::string_view, N>& names, const Rules&... rules) {
    out.clear();
    for (const auto& [key, item] : members(value, path))
      if (const int i = key_index(key, path, names.data(), N); i >= 0)
        read(*item, path + "." + key, out[static_cast<E>(i)], rules...);
  }
  template <class T>
  requires std::is_class_v<T>
  void read(const json& value, const std::string& path, T& out) {
    nested(path, [&] { from_json(value, out); });
  }

  std::optional<std::int64_t> integer(const json&, const std::string& path, std::int64_t least,
                                      std::int64_t most, Range);
  std::optional<double> number(const json&, const std::string& path, Range);
  std::optional<double> quantity(const json&, const std::string& path, Range);
  int name_index(const json&, const std::string& path, const std::string_view* names, std::size_t n);
  int key_index(const std::string& key, const std::string& path, const std::string_view* names,
                std::size_t n);
  std::vector<const json*> elements(const json&, const std::string& path, std::size_t exactly = 0);
  std::vector<std::pair<std::string, const json*>> members(const json&, const std::string& path);

  const json& object_;
  std::vector<std::string> known_;
  bool others_allowed_ = false;
  std::vector<Problem> problems_;
};

class JsonWriter {
 public:
  explicit JsonWriter(nlohmann::json& out);

  template <class T, class... Rules>
  void required(std::string_view key, const T& value, const Rules&... rules) {
    write(slot(key), std::string(key), value, rules...);
  }
  template <class T, class... Rules>
  void optional(std::string_view key, const T& value, const Rules&... rules) {
    required(key, value, rules...);
  }
  template <class T, class... Rules>  // an empty optional is left out
  void optional(std::string_view key, const std::optional<T>& value, const Rules&... rules) {
    if (value) required(key, *value, rules...);
  }
  void ignored(std::string_view) {}

 private:
  using json = nlohmann::json;
  json& slot(std::string_view key);
  static json& member(json& object, std::string_view key);
  static json& append(json& array);
  static void make_array(json&);
  static void make_object(json&);

  static void write(json&, const std::string& key, bool);
  static void write(json&, const std::string& key, const std::string&);
  static void write(json&, const std::string& key, double, Range = {});
  static void write_integer(json&, std::int64_t);
  static void write_quantity(json&, const std::string& key, double);
  template <std::integral T>
  static void write(json& out, const std::string&, T value, Range = {}) {
    write_integer(out, static_cast<std::int64_t>(value));
  }
  template <class Tag>
  static void write(json& out, const std::string& key, Quantity<Tag, double> value, Range = {}) {
    write_quantity(out, key, value.v);
  }
  static void write(json&, const std::string& key, Bytes, Range = {});
  template <class E, std::size_t N>
  requires std::is_enum_v<E>
  static void write(json& out, const std::string& key, E value,
                    const std::array<std::string_view, N>& names) {
    write(out, key, std::string(names[static_cast<std::size_t>(value)]));
  }
  template <class T, class... Rules>
  static void write(json& out, const std::string& key, const std::vector<T>& values, const Rules&... rules) {
    make_array(out);
    for (const auto& v : values) write(append(out), key, v, rules...);
  }
  template <class T, std::size_t N, class... Rules>
  static void write(json& out, const std::string& key, const std::array<T, N>& values,
                    const Rules&... rules) {
    make_array(out);
    for (const auto& v : values) write(append(out), key, v, rules...);
  }
  template <class T, class... Rules>
  static void write(json& out, const std::string& key, const std::map<std::string, T>& values,
                    const Rules&... rules) {
    make_object(out);
    for (const auto& [k, v] : values) write(member(out, k), key, v, rules...);
  }
  template <class E, class T, std::size_t N, class... Rules>
  requires std::is_enum_v<E>
  static void write(json& out, const std::string& key, const std::map<E, T>& values,
                    const std::array<std::string_view, N>& names, const Rules&... rules) {
    make_object(out);
    for (const auto& [k, v] : values)
      write(member(out, names[static_cast<std::size_t>(k)]), key, v, rules...);
  }
  template <class T>
  requires std::is_class_v<T>
  static void write(json& out, const std::string&, const T& value) { to_json(out, value); }

  json& out_;
};

template <class T, class Fields>
void write_object(nlohmann::json& out, const T& value, const Fields& fields) {
  JsonWriter writer(out);
  fields(writer, value);
}

// Reads into a fresh T, so that absent optional fields have their defaults.
template <class T, class Fields>
void read_object(const nlohmann::json& object, T& out, const Fields& fields) {
  JsonReader reader(object);
  T value{};
  fields(reader, value);
  if constexpr (requires { validate(value); })
    reader.finish(validate(value));
  else
    reader.finish();
  out = std::move(value);
}

// Text to JSON. Comments are allowed; keys given twice, nesting beyond 200 levels and syntax errors (with
// line and column) are refused. `file` is what the message names.
nlohmann::json parse_json(std::string_view text, const std::string& file);
nlohmann::json read_json_file(const std::filesystem::path&);  // at most kMaxInputBytes
void write_json_file(const std::filesystem::path&, const nlohmann::json&);

// Runs `read`, putting `file` into the problems that name no file yet.
void with_file(const std::string& file, const std::function<void()>& read);

// The same for the JSON of a file.
void with_json_file(const std::filesystem::path&, const std::function<void(const nlohmann::json&)>& read);

// A whole file as a value with from_json.
template <class T>
T load_json(const std::filesystem::path& path) {
  T value{};
  with_json_file(path, [&](const nlohmann::json& j) { from_json(j, value); });
  return value;
}

// Sets one field, or item of a list: set_json_path(j, "fabric.bandwidth_GBps", "25"), "defects[0].node". What
// is absent on the way is added (a list may grow by one item); whether such a field exists is for the reader of
// the value to say. The text is JSON or, when it is not, a string. Throws ConfigError when the path leads
// through something that has no fields or items.
void set_json_path(nlohmann::json&, std::string_view path, std::string_view text);

}  // namespace sextant
