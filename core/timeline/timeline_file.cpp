#include "core/timeline/timeline_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "core/base/schema.hpp"

namespace sextant {
namespace {

constexpr const char* kSchema = "sextant.timeline/1";

struct Stored {
  std::string schema = kSchema, graph, device, build;
  std::vector<double> start_s, end_s;  // by operation
};
constexpr auto kTimelineFields = [](auto& io, auto& s) {
  io.required("schema", s.schema);
  io.required("graph", s.graph);
  io.optional("device", s.device);
  io.optional("build", s.build);
  io.required("start_s", s.start_s);
  io.required("end_s", s.end_s);
};
void from_json(const nlohmann::json& j, Stored& s) {
  require_schema(j, kSchema, "a timeline is written by: sextant run PLAN -o DIR");
  read_object(j, s, kTimelineFields);
}

std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace

void save_timeline(const std::filesystem::path& path, const Timeline& t) {
  Stored s;
  s.graph = hex(t.graph_hash);
  s.device = t.device;
  s.build = t.build;
  for (const Span& span : t.spans) {
    s.start_s.push_back(span.start);
    s.end_s.push_back(span.end);
  }
  nlohmann::json j;
  write_object(j, s, kTimelineFields);
  write_file_atomic(path, j.dump() + "\n");
}

Timeline load_timeline(const std::filesystem::path& path, std::uint64_t hash, std::size_t ops) {
  const auto s = load_json<Stored>(path);
  const auto require = [&](bool holds, const char* key, const std::string& found,
                           const std::string& expected) {
    if (!holds)
      throw ConfigError(Problem{path.string(), key, found, expected,
                                "the timeline belongs to another plan, model or version of sextant"});
  };
  require(s.graph == hex(hash), "graph", s.graph, hex(hash));
  require(s.start_s.size() == ops && s.end_s.size() == ops, "start_s, end_s",
          fmt::format("{} and {} operations", s.start_s.size(), s.end_s.size()),
          fmt::format("{} operations", ops));
  Timeline t;
  t.kind = TimelineKind::measured;
  t.graph_hash = hash;
  t.device = s.device;
  t.build = s.build;
  for (std::size_t i = 0; i < ops; ++i) {
    require(s.end_s[i] >= s.start_s[i], "end_s", fmt::format("{} for operation {}", s.end_s[i], i),
            fmt::format("at least its start, {}", s.start_s[i]));
    t.spans.push_back({s.start_s[i], s.end_s[i]});
  }
  return t;
}

}  // namespace sextant
