#include "tools/traces/trace_files.hpp"

#include <algorithm>
#include <cstdlib>
#include <istream>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.hpp"
#include "core/base/words.hpp"
#include "tools/traces/gzip_input.hpp"
#include "tools/traces/kineto_trace.hpp"
#include "tools/traces/nsys_trace.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

// "…rank3…", "…rank_3…": of files whose content does not say.
int rank_of_name(const fs::path& file) {
  const std::string name = lower(file.filename().string());
  for (std::size_t at = name.find("rank"); at != name.npos; at = name.find("rank", at + 1)) {
    const std::size_t digit = name.find_first_not_of("-_.=", at + 4);
    if (digit == name.npos || name[digit] < '0' || name[digit] > '9') continue;
    return std::atoi(name.c_str() + digit);
  }
  return -1;
}

std::vector<fs::path> traces_directly_in(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.is_regular_file(error) && trace_format_of(entry.path())) out.push_back(entry.path());
  std::ranges::sort(out);
  return out;
}

// What a file does not say of its rank, its name may; else the order.
void give_ranks(TracedJob& job) {
  std::size_t by_order = 0;
  for (std::size_t i = 0; i < job.ranks.size(); ++i) {
    RankTrace& trace = job.ranks[i].trace;
    if (trace.rank < 0) trace.rank = rank_of_name(trace.file);
    if (trace.rank < 0) {
      trace.rank = static_cast<int>(i);
      ++by_order;
    }
  }
  if (by_order > 0)
    job.remarks.push_back(fmt::format(
        "{} of {} traces do not state their rank: ranks are taken in the order of files and devices (a file "
        "called ...rank3... is rank 3)",
        by_order, job.ranks.size()));
  std::ranges::stable_sort(job.ranks, {}, [](const RankSteps& r) { return r.trace.rank; });
}

void check_one_job(TracedJob& job) {
  for (const RankSteps& r : job.ranks) {
    const RankTrace& t = r.trace;
    if (t.world > 0 && job.world > 0 && t.world != job.world)
      throw ConfigError(Problem{t.file, "distributedInfo.world_size", fmt::format("{}", t.world),
                                fmt::format("{}, as the other traces state", job.world),
                                "give the ranks of one job"});
    if (job.world == 0) job.world = t.world;
    if (!t.device.empty() && !job.device.empty() && t.device != job.device)
      throw ConfigError(Problem{t.file, "deviceProperties", t.device,
                                fmt::format("{}, as the other traces state", job.device),
                                "give the ranks of one job"});
    if (job.device.empty()) job.device = t.device;
  }
  for (std::size_t i = 1; i < job.ranks.size(); ++i) {
    const RankSteps &before = job.ranks[i - 1], &here = job.ranks[i];
    if (before.trace.rank != here.trace.rank) continue;
    for (const StepWindow& a : before.steps)
      for (const StepWindow& b : here.steps)
        if (a.number == b.number)
          throw ConfigError(Problem{
              here.trace.file, "rank", fmt::format("{}, step {}", here.trace.rank, b.number),
              fmt::format("another one than that of {}", before.trace.file), "give each rank's trace once"});
  }
}

void remark_on_ranks(TracedJob& job) {
  std::set<int> have;
  for (const RankSteps& r : job.ranks) have.insert(r.trace.rank);
  const int last = *have.rbegin();
  if (job.world > 0 && last >= job.world)
    throw ConfigError(Problem{job.ranks.back().trace.file, "rank", fmt::format("{}", last),
                              fmt::format("below the {} ranks of the job", job.world), ""});
  if (const std::size_t whole = static_cast<std::size_t>(job.world); job.world > 0 && have.size() < whole)
    job.remarks.push_back(fmt::format("{} of {} ranks have a trace ({}): the others may differ", have.size(),
                                      whole, fmt::join(have, ", ")));
  // Clocks: of the first step that all have.
  std::int64_t low = 0, high = 0;
  double longest = 0;
  bool any = false;
  for (const RankSteps& r : job.ranks) {
    const StepWindow& w = r.steps.front();
    if (w.number != job.ranks.front().steps.front().number) continue;
    low = any ? std::min(low, w.begin_ns) : w.begin_ns;
    high = any ? std::max(high, w.begin_ns) : w.begin_ns;
    longest = std::max(longest, w.seconds());
    any = true;
  }
  if (const double apart = 1e-9 * static_cast<double>(high - low); apart > longest)
    job.remarks.push_back(fmt::format(
        "the clocks of the ranks are {:.3g} s apart: ranks are compared by durations alone", apart));
}

}  // namespace

std::optional<TraceFormat> trace_format_of(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return std::nullopt;
  try {
    GzipInput input(file);
    std::istream stream(&input);
    std::string head(std::size_t{64} << 10, '\0');
    stream.read(head.data(), static_cast<std::streamsize>(head.size()));
    head.resize(static_cast<std::size_t>(stream.gcount()));
    if (head.starts_with("SQLite format 3")) return TraceFormat::nsys;
    const auto has = [&](const char* word) { return head.find(word) != head.npos; };
    const std::size_t first = head.find_first_not_of(" \t\r\n");
    if (first == head.npos || (head[first] != '{' && head[first] != '[')) return std::nullopt;
    if (has("\"traceEvents\"") || (head[first] == '[' && has("\"ph\""))) return TraceFormat::kineto;
    if (has("\"schemaVersion\"") && (has("\"deviceProperties\"") || has("\"distributedInfo\"")))
      return TraceFormat::kineto;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  return std::nullopt;
}

std::vector<fs::path> trace_files_in(const fs::path& folder) {
  std::vector<fs::path> found = traces_directly_in(folder), folders;
  if (!found.empty()) return found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_directory(error)) continue;
    std::vector<fs::path> inside = traces_directly_in(entry.path());
    if (inside.empty()) continue;
    folders.push_back(entry.path());
    found = std::move(inside);
  }
  if (folders.size() < 2) return found;
  std::ranges::sort(folders);
  std::vector<std::string> names;
  for (const fs::path& f : folders) names.push_back(f.filename().string());
  throw ConfigError(Problem{folder.string(), "",
                            fmt::format("{} folders with traces: {}", names.size(), fmt::join(names, ", ")),
                            "the traces of one profile", "name one of these folders"});
}

TracedJob read_traces(const std::vector<fs::path>& files, const KernelNames& rules,
                      const std::function<void(double, const std::string&)>& progress) {
  TracedJob job;
  const auto all = static_cast<double>(files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    const ReadProgress of_file = [&](double share) {
      if (progress) progress((static_cast<double>(i) + share) / all, files[i].filename().string());
    };
    const bool database = trace_format_of(files[i]) == TraceFormat::nsys;
    for (RankTrace& trace :
         database ? read_nsys_trace(files[i], rules, of_file) : read_kineto_trace(files[i], rules, of_file)) {
      std::vector<StepWindow> steps = step_windows(trace, job.remarks);
      if (job.program.empty()) job.program = trace.program;
      job.ranks.push_back({std::move(trace), std::move(steps)});
    }
  }
  give_ranks(job);
  check_one_job(job);
  remark_on_ranks(job);
  find_waits(job.ranks, job.remarks);
  return job;
}

}  // namespace sextant
