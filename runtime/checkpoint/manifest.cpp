#include "runtime/checkpoint/manifest.hpp"

#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/digest.hpp"
#include "core/base/json_io.hpp"
#include "core/plan/plan_digest.hpp"

namespace sextant {
namespace {

using nlohmann::json;

constexpr std::string_view kFirstLine = "{\"digest\": \"";  // 32 digits, then kAfter
constexpr std::string_view kAfter = "\",\n";
constexpr std::size_t kDigits = 32;

// A value of somebody else's: kept as text.
struct AnyObject {
  std::string text = "{}";
};
void to_json(json& j, const AnyObject& o) { j = json::parse(o.text); }
void from_json(const json& j, AnyObject& o) {
  if (!j.is_object()) throw ConfigError(Problem{"", "", j.type_name(), "an object", ""});
  o.text = j.dump();
}

struct Random {
  std::int64_t seed = 0;
};
constexpr auto kRandomFields = [](auto& io, auto& r) { io.required("seed", r.seed, at_least(0)); };
void to_json(json& j, const Random& r) { write_object(j, r, kRandomFields); }
void from_json(const json& j, Random& r) { read_object(j, r, kRandomFields); }

constexpr auto kOptimizerFields = [](auto& io, auto& o) {
  io.required("lr", o.rate, at_least(0));
  io.required("lr_final_ratio", o.final_ratio, between(0, 1));
  io.required("warmup_steps", o.warmup_steps, at_least(0));
  io.required("total_steps", o.total_steps, at_least(0));
  io.required("beta1", o.beta1, between(0, 1));
  io.required("beta2", o.beta2, between(0, 1));
  io.required("epsilon", o.epsilon, at_least(0));
  io.required("weight_decay", o.weight_decay, at_least(0));
  io.required("clip_norm", o.clip_norm, above(0));
};

constexpr auto kExtentFields = [](auto& io, auto& e) {
  io.required("tensor", e.tensor);
  io.required("at", e.at);
  io.required("digests", e.digests);
};
struct ExtentRow {
  std::string tensor;
  std::array<std::int64_t, 4> at = {};  // first row, first column, rows, columns
  std::array<std::string, 3> digests = {};
};
void to_json(json& j, const ExtentRow& e) { write_object(j, e, kExtentFields); }
void from_json(const json& j, ExtentRow& e) { read_object(j, e, kExtentFields); }
ExtentRow row_of(const StoredExtent& e) {
  return {e.tensor, {e.extent.row, e.extent.col, e.extent.rows, e.extent.cols}, e.digests};
}
StoredExtent extent_of(ExtentRow&& e) {
  return {std::move(e.tensor), {e.at[0], e.at[1], e.at[2], e.at[3]}, std::move(e.digests)};
}

struct FileRow {
  std::string name;
  std::int64_t bytes = 0;
  std::string header;
  std::vector<ExtentRow> extents;
};
constexpr auto kFileFields = [](auto& io, auto& f) {
  io.required("name", f.name);
  io.required("bytes", f.bytes, at_least(0));
  io.required("header_digest", f.header);
  io.required("extents", f.extents);
};
void to_json(json& j, const FileRow& f) { write_object(j, f, kFileFields); }
void from_json(const json& j, FileRow& f) { read_object(j, f, kFileFields); }

struct Document {
  std::string digest, schema = kCheckpointSchema;
  TrainerClock clock;
  Dtype dtype = Dtype::fp32;
  OptimizerSpec optimizer;
  Random random;
  PlanFile plan;
  AnyObject data, options;
  std::vector<FileRow> files;
};
constexpr auto kDocumentFields = [](auto& io, auto& d) {
  io.optional("digest", d.digest);
  io.required("schema", d.schema);
  io.required("step", d.clock.step, at_least(0));
  io.required("updates", d.clock.updates, at_least(0));
  io.required("skipped", d.clock.skipped, at_least(0));
  io.required("skipped_in_a_row", d.clock.skipped_in_a_row, at_least(0));
  io.required("dtype", d.dtype, kDtypeNames);
  io.required("optimizer", d.optimizer);
  io.required("random", d.random);
  io.required("data", d.data);
  io.optional("options", d.options);
  io.required("plan", d.plan);
  io.required("files", d.files);
};

bool is_digest(const std::string& text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool is_file_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.front() != '.' &&
         name.find('\0') == std::string::npos;
}

[[noreturn]] void damaged(const std::string& file, std::string key, std::string value, std::string expected) {
  throw ConfigError(Problem{file, std::move(key), std::move(value), std::move(expected), ""});
}

}  // namespace

void to_json(json& j, const OptimizerSpec& o) { write_object(j, o, kOptimizerFields); }
void from_json(const json& j, OptimizerSpec& o) { read_object(j, o, kOptimizerFields); }

std::string stored_name(const StoredExtent& e, StateField field) {
  return fmt::format("{}/{}{}", kStateNames[static_cast<std::size_t>(field)], e.tensor, to_string(e.extent));
}

std::string extents_text(std::span<const StoredExtent> extents) {
  json rows = json::array();
  for (const StoredExtent& e : extents) rows.push_back(row_of(e));
  return rows.dump();
}

std::vector<StoredExtent> parse_extents(std::string_view text, const std::string& file) {
  std::vector<StoredExtent> extents;
  with_file(file, [&] {
    const json rows = parse_json(text, file);
    if (!rows.is_array()) throw ConfigError(Problem{"", "extents", rows.type_name(), "a list", ""});
    for (const json& row : rows) extents.push_back(extent_of(row.get<ExtentRow>()));
  });
  return extents;
}

std::vector<Problem> validate(const Manifest& m) {
  std::vector<Problem> problems;
  const auto wrong = [&](std::string key, std::string value, std::string expected) {
    problems.push_back({"", std::move(key), std::move(value), std::move(expected), ""});
  };
  if (m.dtype != Dtype::fp32 && m.dtype != Dtype::fp64)
    wrong("dtype", std::string(name(m.dtype)), "fp32 or fp64");
  if (m.clock.updates + m.clock.skipped != m.clock.step)
    wrong("step", std::to_string(m.clock.step),
          fmt::format("{} updates + {} skipped", m.clock.updates, m.clock.skipped));
  std::map<std::string, std::vector<Extent>> by_tensor;
  std::set<std::string> names;
  for (std::size_t f = 0; f < m.files.size(); ++f) {
    const StoredFile& file = m.files[f];
    const std::string key = fmt::format("files[{}]", f);
    if (!is_file_name(file.name)) wrong(key + ".name", file.name, "the name of a file in the same folder");
    if (!names.insert(file.name).second) wrong(key + ".name", file.name, "each file once");
    if (!is_digest(file.header)) wrong(key + ".header_digest", file.header, "32 hexadecimal digits");
    for (std::size_t e = 0; e < file.extents.size(); ++e) {
      for (const std::string& d : file.extents[e].digests)
        if (!is_digest(d)) wrong(fmt::format("{}.extents[{}].digests", key, e), d, "32 hexadecimal digits");
      by_tensor[file.extents[e].tensor].push_back(file.extents[e].extent);
    }
  }
  for (const ModelSlice& t : model_tensors(m.plan.model)) {
    const auto found = by_tensor.find(t.name);
    if (found == by_tensor.end()) {
      wrong(t.name, "nothing", fmt::format("a tensor of {} x {}", t.model_rows, t.model_cols));
      continue;
    }
    if (const auto problem = cover_problem(found->second, t.model_rows, t.model_cols))
      wrong(t.name, *problem, "every element once");
    by_tensor.erase(found);
  }
  for (const auto& [name, extents] : by_tensor)
    wrong(name, "a tensor", fmt::format("only those of {}", m.plan.model.name));
  return problems;
}

std::string with_digest(std::string_view rest) {
  return fmt::format("{}{}{}{}", kFirstLine, digest(rest), kAfter, rest);
}

std::string manifest_text(const Manifest& m) {
  Document d;
  d.clock = m.clock;
  d.dtype = m.dtype;
  d.optimizer = m.optimizer;
  d.random = {m.seed};
  d.plan = m.plan;
  d.data.text = m.data;
  d.options.text = m.options;
  for (const StoredFile& f : m.files) {
    FileRow& row = d.files.emplace_back(FileRow{f.name, f.bytes, f.header, {}});
    for (const StoredExtent& e : f.extents) row.extents.push_back(row_of(e));
  }
  json j;
  write_object(j, d, kDocumentFields);
  j.erase("digest");
  std::string rest = j.dump().substr(1);
  rest += '\n';
  return with_digest(rest);
}

Manifest parse_manifest(std::string_view text, const std::string& file) {
  const std::size_t head = kFirstLine.size() + kDigits + kAfter.size();
  if (text.size() < head || !text.starts_with(kFirstLine) ||
      text.substr(head - kAfter.size(), kAfter.size()) != kAfter)
    damaged(file, "first line", "something else", "the digest of the lines after it");
  const std::string expected(text.substr(kFirstLine.size(), kDigits)), found = digest(text.substr(head));
  if (found != expected) damaged(file, "digest", found, expected);
  Manifest m;
  with_file(file, [&] {
    json j = parse_json(text, file);
    if (j.is_object() && j.contains("plan")) add_missing_digest(j["plan"]);
    Document d;
    JsonReader reader(j);
    kDocumentFields(reader, d);
    std::vector<Problem> more;
    if (d.schema != kCheckpointSchema)
      more.push_back({"", "schema", d.schema, kCheckpointSchema, "written by another version of sextant?"});
    reader.finish(std::move(more));
    m.clock = d.clock;
    m.dtype = d.dtype;
    m.optimizer = d.optimizer;
    m.seed = d.random.seed;
    m.plan = std::move(d.plan);
    m.data = std::move(d.data.text);
    m.options = std::move(d.options.text);
    for (FileRow& f : d.files) {
      StoredFile& to = m.files.emplace_back(StoredFile{std::move(f.name), f.bytes, std::move(f.header), {}});
      for (ExtentRow& e : f.extents) to.extents.push_back(extent_of(std::move(e)));
    }
    if (auto problems = validate(m); !problems.empty()) throw ConfigError(std::move(problems));
  });
  return m;
}

}  // namespace sextant
