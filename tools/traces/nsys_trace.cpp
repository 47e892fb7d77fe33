#include "tools/traces/nsys_trace.hpp"

#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "tools/traces/sqlite_table.hpp"
#include "tools/traces/trace_builder.hpp"

namespace sextant {
namespace {

constexpr std::int64_t kThreadBits = (std::int64_t{1} << 24) - 1;  // of a globalTid: the thread

class NsysReader {
 public:
  NsysReader(std::string file, const KernelNames& rules, const ReadProgress& progress)
      : path_(std::move(file)), rules_(rules), progress_(progress), file_(path_) {}

  std::vector<RankTrace> read() {
    require_tables();
    if (file_.has("StringIds"))
      file_.each("SELECT id, value FROM StringIds",
                 [&](const SqliteFile::Row& r) { strings_.emplace(r.whole(0), r.text(1)); });
    read_kernels();
    read_memory("CUPTI_ACTIVITY_KIND_MEMCPY");
    read_memory("CUPTI_ACTIVITY_KIND_MEMSET");
    if (traces_.empty()) throw nothing_of_a_gpu();
    read_launches();
    read_ranges();
    return finish();
  }

 private:
  using Key = std::pair<std::int64_t, std::int64_t>;  // process, device

  void require_tables() const {
    if (file_.has("CUPTI_ACTIVITY_KIND_KERNEL") || file_.has("CUPTI_ACTIVITY_KIND_MEMCPY")) return;
    if (!file_.has("StringIds") && !file_.has("TARGET_INFO_GPU") && !file_.has("META_DATA_EXPORT"))
      throw ConfigError(Problem{path_, "", "a database without StringIds and CUPTI_ACTIVITY_KIND_KERNEL",
                                "what 'nsys export -t sqlite' writes", ""});
    throw nothing_of_a_gpu();
  }
  ConfigError nothing_of_a_gpu() const {
    const bool graphs = file_.has("CUPTI_ACTIVITY_KIND_GRAPH_TRACE");
    return ConfigError(Problem{
        path_, "CUPTI_ACTIVITY_KIND_KERNEL",
        graphs ? "no kernel: whole CUDA graphs were traced" : "no kernel", "kernels of a GPU",
        graphs ? "profile with: nsys profile --trace=cuda,nvtx --cuda-graph-trace=node"
               : "profile with: nsys profile --trace=cuda,nvtx; were steps outside of the captured range?"});
  }
  // The column, or a constant where this version has none.
  std::string column(const std::string& table, const char* name, const char* otherwise) const {
    return file_.has(table, name) ? name : otherwise;
  }
  TraceBuilder& of(Key key) {
    const auto found = traces_.find(key);
    if (found != traces_.end()) return found->second;
    RankTrace begun;
    begun.file = path_;
    begun.program = "Nsight Systems";
    return traces_.emplace(key, TraceBuilder(rules_, std::move(begun))).first->second;
  }
  const std::string& text(std::int64_t id) const {
    static const std::string kNone;
    const auto found = strings_.find(id);
    return found == strings_.end() ? kNone : found->second;
  }

  void read_kernels();
  void read_memory(const std::string& table);
  void read_launches();
  void read_ranges();
  std::string device_name(Key) const;
  std::vector<RankTrace> finish();

  std::string path_;
  const KernelNames& rules_;
  const ReadProgress& progress_;
  SqliteFile file_;
  std::unordered_map<std::int64_t, std::string> strings_;
  std::map<Key, TraceBuilder> traces_;
};

void NsysReader::read_kernels() {
  const std::string table = "CUPTI_ACTIVITY_KIND_KERNEL";
  if (!file_.has(table)) return;
  double rows = 0, done = 0;
  file_.each("SELECT COUNT(*) FROM " + table,
             [&](const SqliteFile::Row& r) { rows = static_cast<double>(r.whole(0)); });
  const std::string query =
      fmt::format("SELECT start, \"end\", {}, deviceId, streamId, {}, {} FROM {}",
                  column(table, "globalPid", "0"), column(table, "correlationId", "-1"),
                  column(table, "demangledName", column(table, "shortName", "-1").c_str()), table);
  file_.each(query, [&](const SqliteFile::Row& r) {
    if (progress_ && std::int64_t(done) % 8192 == 0) progress_(done / rows);
    ++done;
    TraceBuilder& trace = of({r.whole(2), r.whole(3)});
    DeviceActivity a;
    a.begin_ns = r.whole(0);
    a.end_ns = r.whole(1);
    a.stream = static_cast<std::uint64_t>(r.whole(4));
    a.name = trace.name(text(r.whole(6)));
    a.kind = trace.class_of(a.name);
    if (a.kind == KernelClass::collective) a.collective = rules_.collective_of(text(r.whole(6)), "");
    trace.add(a, r.whole(5));
  });
}

// copyKind as CUPTI numbers it: 1 from the host, 2 to the host.
void NsysReader::read_memory(const std::string& table) {
  if (!file_.has(table)) return;
  const bool copies = file_.has(table, "copyKind");
  const std::string query = fmt::format("SELECT start, \"end\", {}, deviceId, streamId, {}, {} FROM {}",
                                        column(table, "globalPid", "0"), column(table, "correlationId", "-1"),
                                        copies ? "copyKind" : "0", table);
  file_.each(query, [&](const SqliteFile::Row& r) {
    const std::int64_t kind = r.whole(6);
    TraceBuilder& trace = of({r.whole(2), r.whole(3)});
    DeviceActivity a;
    a.begin_ns = r.whole(0);
    a.end_ns = r.whole(1);
    a.stream = static_cast<std::uint64_t>(r.whole(4));
    a.kind = kind == 1 || kind == 2 ? KernelClass::host_copy : KernelClass::device_copy;
    a.name = trace.name(!copies     ? "Memset"
                        : kind == 1 ? "Memcpy HtoD"
                        : kind == 2 ? "Memcpy DtoH"
                                    : "Memcpy DtoD");
    trace.add(a, r.whole(5));
  });
}

void NsysReader::read_launches() {
  const std::string table = "CUPTI_ACTIVITY_KIND_RUNTIME";
  if (!file_.has(table, "correlationId")) return;
  file_.each(fmt::format("SELECT start, correlationId, {} FROM {}", column(table, "globalTid", "0"), table),
             [&](const SqliteFile::Row& r) {
               const std::int64_t process = r.whole(2) & ~kThreadBits;
               for (auto& [key, trace] : traces_)
                 if (key.first == process || key.first == 0) trace.launched(r.whole(1), r.whole(0));
             });
}

void NsysReader::read_ranges() {
  const std::string table = "NVTX_EVENTS";
  if (!file_.has(table, "end")) return;
  const std::string query = fmt::format(
      "SELECT start, \"end\", {}, {}, {} FROM {} WHERE \"end\" IS NOT NULL AND \"end\" > start",
      column(table, "globalTid", "0"), column(table, "text", "NULL"), column(table, "textId", "NULL"), table);
  file_.each(query, [&](const SqliteFile::Row& r) {
    const std::string name = r.is_null(3) ? text(r.whole(4)) : r.text(3);
    const std::int64_t process = r.whole(2) & ~kThreadBits;
    for (auto& [key, trace] : traces_)
      if (key.first == process || key.first == 0) trace.range(name, r.whole(0), r.whole(1));
  });
}

std::string NsysReader::device_name(Key key) const {
  if (!file_.has("TARGET_INFO_GPU", "name")) return "";
  std::string name, first;
  std::int64_t gpu = key.second;
  // A process may see devices under numbers of its own.
  if (file_.has("TARGET_INFO_CUDA_DEVICE", "gpuId") && file_.has("TARGET_INFO_CUDA_DEVICE", "pid"))
    file_.each("SELECT gpuId, cudaId, pid FROM TARGET_INFO_CUDA_DEVICE", [&](const SqliteFile::Row& r) {
      if (r.whole(1) == key.second && r.whole(2) == ((key.first >> 24) & kThreadBits)) gpu = r.whole(0);
    });
  file_.each("SELECT id, name FROM TARGET_INFO_GPU", [&](const SqliteFile::Row& r) {
    if (first.empty()) first = r.text(1);
    if (r.whole(0) == gpu) name = r.text(1);
  });
  return name.empty() ? first : name;
}

std::vector<RankTrace> NsysReader::finish() {
  std::vector<RankTrace> out;
  for (auto& [key, builder] : traces_) {
    out.push_back(builder.finish());
    out.back().device = device_name(key);
  }
  return out;
}

}  // namespace

std::vector<RankTrace> read_nsys_trace(const std::filesystem::path& path, const KernelNames& rules,
                                       const ReadProgress& progress) {
  return NsysReader(path.string(), rules, progress).read();
}

}  // namespace sextant
