#include "tools/inputs/file_kind.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "core/base/packed_text.hpp"
#include "core/base/shallow_json.hpp"
#include "planner/calibration/run_log.hpp"
#include "tools/import/import_file.hpp"
#include "tools/import/other_trainers.hpp"
#include "tools/traces/trace_files.hpp"

namespace sextant {

namespace {

struct SchemaUse {
  std::string_view schema;
  FileUse use;
  const char *what, *taken_by;
};
constexpr std::array kSchemas = {
    SchemaUse{
        "sextant.plan_file/", FileUse::plan, "a plan file of sextant",
        "--plan takes it; its model, cluster and stack can be read once each is saved as a file of its own"},
    SchemaUse{"sextant.shortlist/", FileUse::tried, "a shortlist of 'sextant plan --shortlist'",
              "sextant calibrate --tried takes it"},
    SchemaUse{"sextant.calibration/", FileUse::calibration, "a calibration of 'sextant calibrate -o'",
              "--calibration takes it"},
    SchemaUse{"sextant.profile/", FileUse::profile, "a profile of 'sextant profile -o'",
              "--profile takes it"},
};

// What an object of JSON without a schema is by its keys.
std::optional<FileKind> kind_of_object(const nlohmann::json& j) {
  const auto has = [&](const char* key) { return j.contains(key); };
  if ((has("model_type") || has("architectures")) && (has("hidden_size") || has("n_embd")))
    return FileKind{FileUse::model, "a model (Hugging Face's config.json)", "--model takes it"};
  if (has("n_layers") && has("hidden")) return FileKind{FileUse::model, "a model", "--model takes it"};
  if (has("dim") && has("n_layers") && has("n_heads"))
    return FileKind{FileUse::model, "a model (Meta's params.json)", "--model takes it"};
  if (has("device") && has("node")) return FileKind{FileUse::cluster, "a cluster", "--cluster takes it"};
  if (has("can") || has("rules") || has("kernels"))
    return FileKind{FileUse::stack, "a software stack", "--stack takes it"};
  return std::nullopt;
}

// Verbs whose answers a report takes, with the newest version of each.
constexpr std::pair<std::string_view, int> kAnswers[] = {{"plan", 2},     {"simulate", 1}, {"explain", 2},
                                                         {"compare", 1},  {"run", 1},      {"validate", 1},
                                                         {"calibrate", 1}};

std::optional<FileKind> kind_of_json(const nlohmann::json& j) {
  if (!j.is_object()) return std::nullopt;
  const auto schema = j.find("schema");
  if (schema == j.end()) return kind_of_object(j);
  if (!schema->is_string()) return std::nullopt;
  const std::string name = schema->get<std::string>();
  for (const SchemaUse& s : kSchemas)
    if (name.starts_with(s.schema)) return FileKind{s.use, s.what, s.taken_by};
  for (const auto& [verb, version] : kAnswers)
    for (int v = 1; v <= version; ++v)
      if (name == fmt::format("sextant.{}/{}", verb, v))
        return FileKind{FileUse::answer, fmt::format("an answer of 'sextant {} --json'", verb),
                        "sextant report takes it"};
  return std::nullopt;
}

// "step_time_s" and "gpus" in its first line: the columns of a table of runs.
bool is_run_table(const std::string& text) {
  const std::string head = text.substr(0, text.find('\n'));
  return head.find(',') != head.npos && head.find("run_id") != head.npos &&
         head.find("step_time") != head.npos;
}

// Three columns or more under names, and as many in the line below; comments may stand above them.
bool is_other_table(const std::string& text) {
  std::istringstream lines(text);
  std::string head, row;
  while (std::getline(lines, head) &&
         (head.starts_with('#') || head.find_first_not_of(" \t\r") == head.npos)) {
  }
  std::getline(lines, row);
  const auto name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  };
  const bool named =
      std::ranges::all_of(head, [&](char c) { return name(c) || c == ',' || c == ' ' || c == '\r'; });
  const auto columns = std::ranges::count(head, ',');
  return named && columns >= 2 && std::ranges::count(row, ',') == columns;
}

bool is_nccl_output(const std::string& text) {
  const auto has = [&](std::string_view words) { return text.find(words) != text.npos; };
  if (has("busbw") && has("algbw")) return true;
  return has("\"results\"") && (has("\"average_bus_bandwidth\"") ||
                                has("\"out_of_place\""));  // -J; one that was ended has no average
}

std::optional<FileKind> kind_of_text(const std::string& text) {
  if (is_nccl_output(text))
    return FileKind{FileUse::nccl, "the output of an nccl-tests program",
                    "sextant calibrate --nccl takes it"};
  if (auto kind = kind_of_json(json_or_discarded(text))) return kind;
  if (is_run_table(text))
    return FileKind{FileUse::runs, "a table of measured runs",
                    "sextant calibrate --runs and sextant validate take it"};
  if (const auto format = log_format_of(text))
    return FileKind{FileUse::log,
                    fmt::format("a training log of {}", kLogFormatNames[static_cast<std::size_t>(*format)]),
                    "sextant calibrate --log takes it"};
  if (const std::string what = importable_as(text); !what.empty())
    return FileKind{FileUse::from, what, "--from of plan, simulate and explain takes it"};
  if (auto other = other_trainer(text))
    return FileKind{FileUse::foreign, std::move(other->what), std::move(other->how)};
  if (is_other_table(text))
    return FileKind{FileUse::runs, "a table (CSV)",
                    "sextant calibrate --runs and sextant validate take tables of measured runs"};
  return std::nullopt;
}

// Neither a plan file nor one with a slip in it: several lines of text that are no JSON, or JSON without fault and nothing of what every
// plan file has.
bool is_no_plan(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return false;
  const auto byte = static_cast<unsigned char>(text[first]);
  if (byte != '{')
    return byte != '[' && byte < 0x80 && text.find('\0') == text.npos && text.find('\n', first) != text.npos;
  try {
    const auto j = parse_json(text, "");
    return j.is_object() && !j.contains("schema") && !j.contains("plan") && !j.contains("key");
  } catch (const ConfigError&) {
    return false;
  }
}

constexpr std::array<const char*, 14> kWanted = {
    "a plan file, or a plan key",
    "a model: preset name, config.json or params.json",
    "a cluster: preset name, nodes x GPUs x device, or JSON file",
    "a software stack: preset name or JSON file",
    "what 'sextant calibrate -o' wrote",
    "what 'sextant profile -o' wrote",
    "a table of measured runs (CSV)",
    "a training log",
    "the output of an nccl-tests program",
    "a shortlist of 'sextant plan --shortlist'",
    kImportable,
    "an answer of --json",
    "traces of the PyTorch profiler or of Nsight Systems",
    ""};

}  // namespace

std::optional<FileKind> kind_of_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  // Before all else: they may be larger than what is read as text.
  if (const auto trace = trace_format_of(path)) {
    const bool database = *trace == TraceFormat::nsys;
    return FileKind{FileUse::trace,
                    database ? "a database (Nsight Systems exports one)" : "a profiler's trace",
                    "sextant compare plan.json takes traces of runs"};
  }
  try {
    return kind_of_text(read_packed_text(path));
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

void refuse_other_kind(FileUse wanted, const std::string& file) {
  const auto kind = kind_of_file(file);
  std::error_code error;
  if (!kind && wanted == FileUse::plan && std::filesystem::is_regular_file(file, error) &&
      is_no_plan(read_text_file(file)))
    throw ConfigError(Problem{file, "", "something else", kWanted[static_cast<std::size_t>(wanted)],
                              "state its layout as a key, such as tp4.pp2.dp8.z1.mbs1; --from takes "
                              "configurations of training frameworks (docs/importing.md)"});
  if (!kind || kind->use == wanted) return;
  throw ConfigError(Problem{file, "", kind->what, kWanted[static_cast<std::size_t>(wanted)], kind->taken_by});
}

}  // namespace sextant
