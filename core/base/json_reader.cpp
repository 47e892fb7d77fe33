#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/decimal.hpp"
#include "core/base/json_io.hpp"
#include "core/base/json_units.hpp"

namespace sextant {
namespace {

using nlohmann::json;

// What was found, short enough for a message.
std::string shown_json(const json& value) {
  if (value.is_object()) return fmt::format("an object of {} fields", value.size());
  if (value.is_array()) return fmt::format("a list of {} items", value.size());
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string range_text(std::string_view what, Range r) {
  const bool low = std::isfinite(r.least), high = std::isfinite(r.most);
  if (low && high && r.least_excluded)
    return fmt::format("{} above {}, up to {}", what, decimal(r.least), decimal(r.most));
  if (low && high) return fmt::format("{} from {} to {}", what, decimal(r.least), decimal(r.most));
  if (low && r.least_excluded) return fmt::format("{} above {}", what, decimal(r.least));
  if (low) return fmt::format("{} of {} or more", what, decimal(r.least));
  if (high) return fmt::format("{} of {} or less", what, decimal(r.most));
  return std::string(what);
}

// Why what was found is no number, or not a whole one, where its looks could deceive.
std::string looks_like_a_number(const json& value) {
  if (value.is_number_float() && std::isfinite(value.get<double>())) {
    constexpr double kWhole = 9e15;  // beyond, every number is whole
    return std::abs(value.get<double>()) < kWhole ? "it has a fraction" : "it is too large";
  }
  if (!value.is_string()) return "";
  const auto& text = value.get_ref<const std::string&>();
  const json inside = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  return inside.is_number() ? fmt::format("it is a text: write {} without quotes", text) : "it is a text";
}

bool inside(double x, Range r) {
  return x <= r.most && (r.least_excluded ? x > r.least : x >= r.least);  // false for NaN
}

// Read in the place of what is missing, so that whoever reads it says what it should have been.
const json& nothing() {
  static const json null;
  return null;
}

constexpr std::string_view kMissing = "is missing", kSuchAs = ", such as ";

// Values of files that people write, by the end of their path.
struct Example {
  std::string_view path, value;
};
constexpr Example kExamples[] = {
    {"nodes", "8"},
    {"gpus", "8"},
    {"nics", "8"},
    {"node.link", R"("nvswitch")"},
    {"device", R"("A100-SXM4-80GB")"},
    {"fabric", R"("hdr-8x200")"},
    {"device.name", R"("my-gpu")"},
    {"generation", R"("ampere")"},
    {"multiprocessors", "108"},
    {"peak_TFLOPS", R"({"bf16": 312})"},
    {"fabric.name", R"("my-network")"},
    {"fabric.kind", R"("infiniband")"},
    {"efficiency", "0.9"},
    {"n_layers", "32"},
    {"hidden", "4096"},
    {"dim", "4096"},
    {"n_heads", "32"},
    {"ffn_hidden", "11008"},
    {"vocab_size", "32000"},
    {"factor", "8"},
    {"rope_scaling.type", R"("linear")"},
    {"low_freq_factor", "1"},
    {"high_freq_factor", "4"},
    {"original_max_position_embeddings", "8192"},
    {"step_time_s", R"({"value": 25, "lower": 20, "upper": 31})"},
    {"peak_memory_GiB", R"({"value": 70, "lower": 66, "upper": 75})"},
    {"tokens_per_s_per_gpu", "2600"},
    {"model_tflops_per_gpu", "230"},
    {"mfu", "0.7"},
};

// ", such as "nodes": 8", or nothing where no example is known.
std::string such_as(std::string_view path) {
  const std::string_view key = path.substr(path.rfind('.') + 1);
  for (const Example& e : kExamples)
    if (path == e.path || path.ends_with("." + std::string(e.path)))
      return fmt::format("{}\"{}\": {}", kSuchAs, key, e.value);
  return "";
}

// `expected` is what the reader of the value says, `path` at least its key; its suffix may state a unit.
std::string missing(std::string_view path, std::string_view expected) {
  const std::string_view key = path.substr(path.rfind('.') + 1);
  const Unit* unit = stated_unit(key);
  std::string what(expected), example = such_as(path);
  for (const std::string_view number : {"a finite number", "a number"})
    if (expected.starts_with(number)) {
      what = fmt::format("a number{}{}", unit ? fmt::format(" of {}", unit->name) : "",
                         expected.substr(number.size()));
      if (unit && example.empty()) example = fmt::format("{}\"{}\": 1", kSuchAs, key);
      break;
    }
  if (unit && expected.starts_with("an object")) what += fmt::format(" of numbers of {}", unit->name);
  if (expected.starts_with("an object") && example.ends_with('"')) what += " or the name of a preset";
  return fmt::format("{}: {}{}", kMissing, what, example);
}

std::string names_text(const std::string_view* names, std::size_t n) {
  return fmt::format("one of {}", fmt::join(names, names + n, ", "));
}

// Units that look alike and are not: a network's bits and our bytes, a data sheet's GB and a driver's GiB.
std::string_view other_unit(std::string_view word, std::string_view near) {
  if (word.ends_with("bps") && near.ends_with("Bps")) return " It is in bytes: 400 Gb/s are 50 GB/s";
  if (word.ends_with("_GB") && near.ends_with("_GiB"))
    return " It is in GiB, what the driver reports: 80 GB are 74.5";
  if (word.ends_with("_ms") && near.ends_with("_us")) return " It is in microseconds";
  return "";
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = closest(word, candidates);
  return near.empty() ? "" : fmt::format("did you mean {}?{}", near, other_unit(word, near));
}

}  // namespace

JsonReader::JsonReader(const json& object) : object_(object) {
  if (!object.is_object()) wrong(object, "", "an object { ... }");
}

bool JsonReader::has(std::string_view key) const {
  if (!object_.is_object()) return false;
  const auto at = object_.find(key);
  return at != object_.end() && !at->is_null();
}

const json* JsonReader::take(std::string_view key, bool required) {
  known_.emplace_back(key);
  if (!object_.is_object()) return nullptr;
  if (has(key)) return &*object_.find(key);
  if (!required) return nullptr;
  problems_.push_back({"", std::string(key), "", "", std::string(kMissing)});
  return &nothing();
}

void JsonReader::fail(Problem problem) { problems_.push_back(std::move(problem)); }

void JsonReader::wrong(const json& found, const std::string& path, std::string expected, std::string hint) {
  if (&found == &nothing() && !problems_.empty() && problems_.back().key == path) {
    problems_.back().hint = missing(path, expected);
    return;
  }
  problems_.push_back({"", path, shown_json(found), std::move(expected), std::move(hint)});
}

void JsonReader::nested(const std::string& path, const std::function<void()>& read_it) {
  // What is missing is reported by now; what its reader says of nothing is what it should have been.
  const bool absent = !known_.empty() && known_.back() == path && !has(path);
  try {
    read_it();
  } catch (const ConfigError& e) {
    for (Problem p : e.problems()) {
      if (absent && p.key.empty() && !p.expected.empty()) problems_.back().hint = missing(path, p.expected);
      if (absent) return;
      const bool joined = p.key.empty() || p.key.starts_with('[');
      p.key = path + (joined ? "" : ".") + p.key;
      if (p.hint.starts_with(kMissing) && p.hint.find(kSuchAs) == p.hint.npos) p.hint += such_as(p.key);
      problems_.push_back(std::move(p));
    }
  } catch (const json::exception& e) {
    if (!absent) problems_.push_back({"", path, "", "", e.what()});
  }
}

void JsonReader::report_unknown_keys() {
  if (!object_.is_object()) return;
  std::vector<std::string> candidates;
  for (const auto& key : known_)
    if (!others_allowed_ || !object_.contains(key)) candidates.push_back(key);
  bool listed = false;  // all names once are enough
  for (const auto& [key, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    std::string hint = did_you_mean(key, candidates);
    if (others_allowed_ && hint.empty()) continue;
    if (hint.empty() && !std::exchange(listed, true))
      hint = fmt::format("there are {}", fmt::join(known_, ", "));
    problems_.push_back({"", key, "", "", "unknown field" + (hint.empty() ? "" : ", " + hint)});
  }
}

void JsonReader::finish(std::vector<Problem> more) {
  report_unknown_keys();
  const std::size_t found = problems_.size();
  for (auto& p : more) {
    const bool reported =
        std::any_of(problems_.begin(), problems_.begin() + static_cast<std::ptrdiff_t>(found),
                    [&](const Problem& q) { return q.key == p.key || q.key.empty(); });
    if (!reported) problems_.push_back(std::move(p));
  }
  if (!problems_.empty()) throw ConfigError(std::move(problems_));
}

void JsonReader::read(const json& value, const std::string& path, bool& out) {
  if (value.is_boolean())
    out = value.get<bool>();
  else
    wrong(value, path, "true or false");
}

void JsonReader::read(const json& value, const std::string& path, std::string& out) {
  if (!value.is_string()) return wrong(value, path, "a text in quotes");
  const auto& text = value.get_ref<const std::string&>();
  // A terminal would obey them, and a NUL would end the text early.
  const bool control = std::any_of(text.begin(), text.end(), [](unsigned char c) {
    return (c < 0x20 && c != '\n' && c != '\t' && c != '\r') || c == 0x7F;
  });
  if (control) return wrong(value, path, "a text without control characters");
  out = text;
}

void JsonReader::read(const json& value, const std::string& path, double& out, Range range) {
  if (const auto x = number(value, path, range)) out = *x;
}

std::optional<double> JsonReader::number(const json& value, const std::string& path, Range range) {
  const double x = value.is_number() ? value.get<double>() : std::nan("");
  if (x != 0 && std::isfinite(x) && (std::abs(x) < kSmallestNumber || std::abs(x) > kLargestNumber)) {
    wrong(value, path, fmt::format("0, or a number between {} and {}", kSmallestNumber, kLargestNumber));
    return std::nullopt;
  }
  if (std::isfinite(x) && inside(x, range)) return x;
  wrong(value, path, range_text(value.is_number() ? "a number" : "a finite number", range),
        value.is_string() ? looks_like_a_number(value) : "");
  return std::nullopt;
}

std::optional<std::int64_t> JsonReader::integer(const json& value, const std::string& path,
                                                std::int64_t least, std::int64_t most, Range range) {
  // 4e7 is a whole number too; beyond 2^53 a double no longer tells neighbours apart.
  constexpr double kExact = 9007199254740992.0;
  std::optional<std::int64_t> n;
  if (value.is_number_unsigned()) {
    if (const auto u = value.get<std::uint64_t>(); u <= static_cast<std::uint64_t>(most))
      n = static_cast<std::int64_t>(u);
  } else if (value.is_number_integer()) {
    n = value.get<std::int64_t>();
  } else if (value.is_number_float()) {
    const double x = value.get<double>();
    if (std::abs(x) <= kExact && std::floor(x) == x) n = static_cast<std::int64_t>(x);
  }
  if (n && *n >= least && *n <= most && inside(static_cast<double>(*n), range)) return n;
  // The type's own limit is worth telling only of what lies beyond it.
  const bool whole = n || value.is_number_unsigned();
  const bool small_type = most <= std::numeric_limits<int>::max();
  if (whole && small_type && !std::isfinite(range.most)) range.most = static_cast<double>(most);
  wrong(value, path, range_text("a whole number", range), whole ? "" : looks_like_a_number(value));
  return std::nullopt;
}

std::optional<double> JsonReader::quantity(const json& value, const std::string& path, Range range) {
  const Unit& unit = unit_of(path);
  const auto x = number(value, path, range);
  if (!x) return std::nullopt;
  const auto si = unit.binary ? std::optional(*x * unit.factor) : parse_decimal(decimal(*x), unit.shift);
  if (!si || !std::isfinite(*si)) wrong(value, path, "a smaller number");
  return si;
}

void JsonReader::read(const json& value, const std::string& path, Bytes& out, Range range) {
  const auto bytes = quantity(value, path, range);
  if (!bytes) return;
  if (std::abs(*bytes) < 9.2e18)
    out = Bytes(std::llround(*bytes));
  else
    wrong(value, path, "a smaller number");
}

int JsonReader::name_index(const json& value, const std::string& path, const std::string_view* names,
                           std::size_t n) {
  if (!value.is_string()) {
    wrong(value, path, names_text(names, n));
    return -1;
  }
  const std::string& text = value.get_ref<const std::string&>();
  const auto at = std::find(names, names + n, text);
  if (at != names + n) return static_cast<int>(at - names);
  wrong(value, path, names_text(names, n), did_you_mean(text, {names, names + n}));
  return -1;
}

int JsonReader::key_index(const std::string& key, const std::string& path, const std::string_view* names,
                          std::size_t n) {
  const auto at = std::find(names, names + n, key);
  if (at != names + n) return static_cast<int>(at - names);
  problems_.push_back({"", path + "." + key, fmt::format("the key {}", shown_json(key)), names_text(names, n),
                       did_you_mean(key, {names, names + n})});
  return -1;
}

std::vector<const json*> JsonReader::elements(const json& value, const std::string& path,
                                              std::size_t exactly) {
  if (!value.is_array() || (exactly > 0 && value.size() != exactly)) {
    wrong(value, path, exactly > 0 ? fmt::format("a list of {} items", exactly) : "a list [ ... ]");
    return {};
  }
  std::vector<const json*> out;
  out.reserve(value.size());
  for (const auto& item : value) out.push_back(&item);
  return out;
}

std::vector<std::pair<std::string, const json*>> JsonReader::members(const json& value,
                                                                     const std::string& path) {
  if (!value.is_object()) {
    wrong(value, path, "an object { ... }");
    return decltype(members(value, path)){};
  }
  std::vector<std::pair<std::string, const json*>> out;
  for (const auto& [key, item] : value.items()) out.emplace_back(key, &item);
  return out;
}

}  // namespace sextant
