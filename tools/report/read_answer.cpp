#include "tools/report/read_answer.hpp"

#include <array>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "core/timeline/work_profile.hpp"
#include "tools/inputs/file_kind.hpp"
#include "tools/report/answer_chapters.hpp"
#include "tools/report/run_chapter.hpp"
#include "tools/report/search_chapter.hpp"

namespace sextant {
namespace {

constexpr const char* kExpected =
    "a plan file, a profile, the folder of a run, or what plan, simulate, explain, compare, run, validate or "
    "calibrate print "
    "with --json";

struct AnswerKind {
  std::string_view schema;
  ReportChapter (*chapter)(const AnswerView&);
};
constexpr std::array<AnswerKind, 7> kReadable = {{{"sextant.plan/", search_chapter},
                                                  {"sextant.simulate/", simulate_chapter},
                                                  {"sextant.explain/", explain_chapter},
                                                  {"sextant.compare/", compare_chapter},
                                                  {"sextant.run/", run_chapter},
                                                  {"sextant.validate/", validate_chapter},
                                                  {"sextant.calibrate/", calibrate_chapter}}};

[[noreturn]] void refuse_answer(const std::string& path, const std::string& found) {
  if (const auto kind = kind_of_file(path))
    throw ConfigError(Problem{path, "", kind->what, kExpected, kind->taken_by});
  throw ConfigError(Problem{path, "", found, kExpected, "sextant VERB --json > FILE writes one"});
}

// Two versions of an answer that a report can read: what later ones removed may be missing, which is told by its key.
ReportChapter chapter_of(const std::string& path, const ReportContext& context) {
  nlohmann::json answer;
  const std::string text = read_text_file(path);
  try {
    answer = parse_json(text, path);
  } catch (const ConfigError&) {
    if (kind_of_file(path)) refuse_answer(path, "");
    throw;
  }
  if (!answer.is_object() || !answer.contains("schema") || !answer["schema"].is_string())
    refuse_answer(path, "JSON without a schema");
  const auto schema = answer["schema"].get<std::string>();
  if (schema.starts_with("sextant.plan_file/")) return plan_chapter(path, context);
  if (schema.starts_with("sextant.profile/")) {
    ReportChapter out = profile_chapter(load_profile(path, context.presets));
    out.source = fmt::format("{}: a profile", path);
    return out;
  }
  for (const AnswerKind& kind : kReadable)
    if (schema.starts_with(kind.schema)) {
      ReportChapter out = kind.chapter(AnswerView(answer, path));
      out.source = fmt::format("{}: {}", path, schema);
      return out;
    }
  if (schema.starts_with("sextant.timeline/"))
    throw ConfigError(
        Problem{path, "", "the timeline of a run", kExpected, "give the folder that it lies in"});
  refuse_answer(path, fmt::format("an answer of the kind {}", schema));
}

}  // namespace

ReportChapter read_answer(const std::string& path, const ReportContext& context) {
  if (std::filesystem::is_directory(path)) return run_folder_chapter(path, context);
  return chapter_of(path, context);
}

}  // namespace sextant
