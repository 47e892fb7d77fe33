#include "tools/traces/kineto_trace.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <istream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/words.hpp"
#include "tools/traces/gzip_input.hpp"
#include "tools/traces/trace_builder.hpp"

namespace sextant {
namespace {

constexpr std::int64_t kUnset = -1;

// Beyond any clock, which TraceBuilder refuses.
constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostMicroseconds = kNoTime / 2000;

std::int64_t nanoseconds_of(double us) {
  return std::abs(us) <= static_cast<double>(kMostMicroseconds) ? std::llround(us * 1e3) : kNoTime;
}
std::int64_t nanoseconds_of(std::int64_t us) {
  return us <= kMostMicroseconds && us >= -kMostMicroseconds ? 1000 * us : kNoTime;
}

// "1712195495502094.501" microseconds as whole nanoseconds: a double has too few digits for times since 1970.
std::int64_t nanoseconds_of(std::string_view us) {
  std::int64_t whole = 0;
  const char *at = us.data(), *end = us.data() + us.size();
  const auto [behind, error] = std::from_chars(at, end, whole);
  if (error != std::errc() || (behind != end && (*behind == 'e' || *behind == 'E')))
    return nanoseconds_of(std::strtod(std::string(us).c_str(), nullptr));
  std::int64_t fraction = 0;
  if (behind != end && *behind == '.') {
    int digits = 0;
    for (at = behind + 1; at != end && digits < 3 && *at >= '0' && *at <= '9'; ++at, ++digits)
      fraction = 10 * fraction + (*at - '0');
    for (; digits < 3; ++digits) fraction *= 10;
    if (at != end && (*at == 'e' || *at == 'E'))
      return nanoseconds_of(std::strtod(std::string(us).c_str(), nullptr));
  }
  const std::int64_t out = nanoseconds_of(whole);
  return out == kNoTime ? out : out + (us.front() == '-' ? -fraction : fraction);
}

// "[0, 1, 2]"; nothing where the profiler cut it ("[0, 1, ..., 7]").
std::vector<int> ranks_of(std::string_view text) {
  std::vector<int> out;
  if (text.find("..") != text.npos) return out;
  for (std::size_t at = 0; at < text.size();) {
    int rank = 0;
    const auto [behind, error] = std::from_chars(text.data() + at, text.data() + text.size(), rank);
    if (error == std::errc()) {
      out.push_back(rank);
      at = static_cast<std::size_t>(behind - text.data());
    } else {
      ++at;
    }
  }
  return out;
}

int bytes_of_dtype(std::string_view dtype) {
  const std::string small = lower(dtype);
  const auto has = [&](const char* word) { return small.find(word) != small.npos; };
  if (has("64") || has("double") || small == "long") return 8;
  if (has("16") || has("half") || small == "short") return 2;
  if (has("8") || has("char") || has("byte") || has("bool")) return 1;
  return 4;
}

struct TraceEvent {
  std::string phase, category, name, said, dtype, group_name, group_description, group_ranks;
  std::int64_t begin_ns = kUnset, duration_ns = kUnset, process = kUnset, device = kUnset, stream = kUnset,
               correlation = kUnset, in_elements = 0, out_elements = 0, group_size = 0, source = kUnset,
               destination = kUnset;
  std::int64_t end_ns() const { return begin_ns <= kNoTime - duration_ns ? begin_ns + duration_ns : kNoTime; }
  void clear() {
    for (std::string* text :
         {&phase, &category, &name, &said, &dtype, &group_name, &group_description, &group_ranks})
      text->clear();
    begin_ns = duration_ns = process = device = stream = correlation = source = destination = kUnset;
    in_elements = out_elements = group_size = 0;
  }
};

// A number or a text, as the file has it.
struct JsonScalar {
  std::string_view text;
  std::int64_t whole = 0;
  bool is_number = false;
};

class KinetoReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  KinetoReader(std::string file, const KernelNames& rules, GzipInput& input, const ReadProgress& progress)
      : file_(std::move(file)), rules_(rules), input_(input), progress_(progress) {
    std::error_code error;
    size_ = static_cast<double>(std::filesystem::file_size(file_, error));
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t v) override { return scalar({"", v, true}); }
  bool number_unsigned(number_unsigned_t v) override {
    return scalar({"", static_cast<std::int64_t>(v), true});
  }
  bool number_float(number_float_t v, const string_t& digits) override {
    return scalar({digits, std::isfinite(v) && std::abs(v) < 9e18 ? static_cast<std::int64_t>(v) : 0, true});
  }
  bool string(string_t& v) override { return scalar({v, 0, false}); }
  bool binary(binary_t&) override { return true; }
  bool key(string_t& v) override {
    keys_[depth_] = v;
    return true;
  }
  bool start_object(std::size_t) override {
    open();
    if (in_events_ && depth_ == events_depth_ + 1) event_.clear();
    if (depth_ == 3 && keys_[1] == "deviceProperties") device_.reset();
    if (depth_ == 4 && keys_[1] == "distributedInfo" && keys_[2] == "pg_config") group_ = {};
    return true;
  }
  bool end_object() override {
    if (in_events_ && depth_ == events_depth_ + 1) take_event();
    if (depth_ == 4 && keys_[1] == "distributedInfo" && keys_[2] == "pg_config" && !group_.ranks.empty())
      configured_[group_.name] = group_;
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    open();
    if (!in_events_ && ((depth_ == 2 && keys_[1] == "traceEvents") || depth_ == 1)) {
      in_events_ = has_events_ = true;
      events_depth_ = depth_;
    }
    return true;
  }
  bool end_array() override {
    if (in_events_ && depth_ == events_depth_) in_events_ = false;
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::json::exception&) override {
    const bool ended = input_.sgetc() == std::streambuf::traits_type::eof();
    const std::string found = !input_.damage().empty() ? input_.damage()
                              : ended ? fmt::format("it ends in the middle, after {} bytes of JSON", position)
                                      : fmt::format("no JSON at byte {}: ...{}", position, printable(token));
    throw ConfigError(Problem{file_, "", found, "a trace that was written to its end",
                              "was the job ended while the profiler wrote? Profile again, or give the traces "
                              "of other ranks"});
  }

  std::vector<RankTrace> finish();

 private:
  static std::string printable(std::string_view token) {
    std::string out;
    for (const char c : token.substr(0, 40)) out += c >= ' ' && c < 127 ? c : '?';
    return out;
  }
  void open() {
    ++depth_;
    if (keys_.size() <= depth_) keys_.resize(depth_ + 1);
    keys_[depth_].clear();
  }
  bool scalar(const JsonScalar& v) {
    if (in_events_) {
      if (depth_ == events_depth_ + 1) event_field(keys_[depth_], v);
      if (depth_ == events_depth_ + 2 && keys_[depth_ - 1] == "args") argument(keys_[depth_], v);
    } else {
      root_field(v);
    }
    return true;
  }
  void event_field(const std::string& key, const JsonScalar& v);
  void argument(const std::string& key, const JsonScalar& v);
  void root_field(const JsonScalar& v);
  void take_event();
  void take_activity(KernelClass by_category, bool is_kernel);
  TraceBuilder& of_device(std::int64_t device);

  std::string file_;
  const KernelNames& rules_;
  GzipInput& input_;
  const ReadProgress& progress_;
  double size_ = 0;
  std::size_t depth_ = 0, events_depth_ = 0, events_ = 0;
  bool in_events_ = false, has_events_ = false;
  std::vector<std::string> keys_ = std::vector<std::string>(16);
  TraceEvent event_;
  std::optional<std::int64_t> device_;
  ProcessGroup group_;
  std::map<std::string, ProcessGroup> configured_;  // by name
  std::map<std::int64_t, std::string> devices_;     // names by number
  std::map<std::int64_t, TraceBuilder> traces_;     // by device
  std::vector<std::pair<std::int64_t, std::int64_t>> launches_;
  std::vector<std::pair<std::string, StepMark>> ranges_;
  int rank_ = -1, world_ = 0;
};

void KinetoReader::event_field(const std::string& key, const JsonScalar& v) {
  const auto time = [&] { return v.text.empty() ? nanoseconds_of(v.whole) : nanoseconds_of(v.text); };
  if (key == "ph") event_.phase = v.text;
  if (key == "cat") event_.category = v.text;
  if (key == "name") event_.name = v.text;
  if (key == "ts") event_.begin_ns = time();
  if (key == "dur") event_.duration_ns = time();
  if (key == "pid" && v.is_number) event_.process = v.whole;
}

void KinetoReader::argument(const std::string& key, const JsonScalar& v) {
  if (key == "stream") event_.stream = v.whole;
  if (key == "device") event_.device = v.whole;
  if (key == "correlation") event_.correlation = v.whole;
  if (key == "Collective name") event_.said = v.text;
  if (key == "dtype") event_.dtype = v.text;
  constexpr std::int64_t kElements = std::int64_t{1} << 50;  // more than all memory there is
  if (key == "In msg nelems") event_.in_elements = std::clamp<std::int64_t>(v.whole, 0, kElements);
  if (key == "Out msg nelems") event_.out_elements = std::clamp<std::int64_t>(v.whole, 0, kElements);
  if (key == "Group size") event_.group_size = v.whole;
  if (key == "Process Group Name")
    event_.group_name = v.is_number ? fmt::format("{}", v.whole) : std::string(v.text);
  if (key == "Process Group Description") event_.group_description = v.text;
  if (key == "Process Group Ranks") event_.group_ranks = v.text;
  if (key == "Src Rank") event_.source = v.whole;
  if (key == "Dst Rank") event_.destination = v.whole;
}

void KinetoReader::root_field(const JsonScalar& v) {
  if (depth_ < 2) return;
  if (keys_[1] == "deviceProperties" && depth_ == 3) {
    if (keys_[3] == "id") device_ = v.whole;
    if (keys_[3] == "name") devices_[device_.value_or(static_cast<std::int64_t>(devices_.size()))] = v.text;
  }
  if (keys_[1] != "distributedInfo") return;
  if (depth_ == 2 && keys_[2] == "rank") rank_ = static_cast<int>(v.whole);
  if (depth_ == 2 && keys_[2] == "world_size") world_ = static_cast<int>(v.whole);
  if (depth_ < 4 || keys_[2] != "pg_config") return;
  if (keys_[4] == "pg_name") group_.name = v.is_number ? fmt::format("{}", v.whole) : std::string(v.text);
  if (keys_[4] == "pg_desc") group_.description = v.text;
  if (keys_[4] == "pg_size") group_.size = static_cast<int>(v.whole);
  if (keys_[4] != "ranks") return;
  if (depth_ == 5) group_.ranks.push_back(static_cast<int>(v.whole));
  if (depth_ == 4) group_.ranks = ranks_of(v.text);
}

TraceBuilder& KinetoReader::of_device(std::int64_t device) {
  const auto found = traces_.find(device);
  if (found != traces_.end()) return found->second;
  RankTrace begun;
  begun.file = file_;
  begun.program = "PyTorch profiler";
  return traces_.emplace(device, TraceBuilder(rules_, std::move(begun))).first->second;
}

void KinetoReader::take_event() {
  if (++events_ % 8192 == 0 && progress_ && size_ > 0) progress_(static_cast<double>(input_.taken()) / size_);
  if (event_.phase != "X" || event_.begin_ns == kUnset || event_.duration_ns < 0) return;
  const std::string& category = event_.category;
  if (category == "kernel" || category == "Kernel") return take_activity(KernelClass::other, true);
  if (category == "gpu_memcpy" || category == "Memcpy") return take_activity(KernelClass::device_copy, false);
  if (category == "gpu_memset" || category == "Memset") return take_activity(KernelClass::device_copy, false);
  const bool launches = category == "cuda_runtime" || category == "cuda_driver" || category == "Runtime" ||
                        category == "hip_runtime";
  if (launches && event_.correlation >= 0)
    launches_.emplace_back(event_.correlation, event_.begin_ns);
  else if (!launches && category != "gpu_user_annotation" && category != "python_function" &&
           rules_.step_of(event_.name).word >= 0)
    ranges_.emplace_back(event_.name, StepMark{-1, event_.begin_ns, event_.end_ns()});
}

void KinetoReader::take_activity(KernelClass by_category, bool is_kernel) {
  TraceBuilder& trace = of_device(event_.device >= 0 ? event_.device : event_.process);
  DeviceActivity a;
  a.begin_ns = event_.begin_ns;
  a.end_ns = event_.end_ns();
  a.stream = static_cast<std::uint64_t>(std::max<std::int64_t>(event_.stream, 0));
  a.name = trace.name(event_.name);
  a.kind = trace.class_of(a.name);
  if (!is_kernel && a.kind != KernelClass::host_copy) a.kind = by_category;
  if (a.kind == KernelClass::collective) {
    a.collective = rules_.collective_of(event_.name, event_.said);
    a.bytes = std::max(event_.in_elements, event_.out_elements) * bytes_of_dtype(event_.dtype);
    constexpr std::int64_t kRanks = 1 << 15;
    if (a.collective == CollectiveName::send_recv && event_.source >= 0 && event_.destination >= 0 &&
        event_.source < kRanks && event_.destination < kRanks)
      a.peers = static_cast<std::int32_t>(event_.source * kRanks + event_.destination);
    if (!event_.group_name.empty() || event_.group_size > 0) {
      ProcessGroup group{event_.group_name, event_.group_description, static_cast<int>(event_.group_size),
                         ranks_of(event_.group_ranks)};
      if (group.size > 0 && group.ranks.size() != static_cast<std::size_t>(group.size)) group.ranks.clear();
      a.group = trace.group(group);
    }
  }
  trace.add(a, event_.correlation);
}

std::vector<RankTrace> KinetoReader::finish() {
  if (!has_events_)
    throw ConfigError(Problem{file_, "traceEvents", "", "a trace of the PyTorch profiler", ""});
  if (traces_.empty())
    throw ConfigError(Problem{file_, "traceEvents", fmt::format("{} events, none of a GPU", events_),
                              "kernels of a GPU (\"cat\": \"kernel\")",
                              "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]; where "
                              "CUPTI is missing or taken by another profiler, PyTorch warns and records "
                              "the host alone"});
  std::vector<RankTrace> out;
  for (auto& [device, builder] : traces_) {
    for (const auto& [correlation, at] : launches_) builder.launched(correlation, at);
    for (const auto& [range, mark] : ranges_) builder.range(range, mark.begin_ns, mark.end_ns);
    RankTrace trace = builder.finish();
    const auto named = devices_.find(device);
    trace.device = named != devices_.end() ? named->second
                   : devices_.size() == 1  ? devices_.begin()->second
                                           : "";
    trace.world = world_;
    if (traces_.size() == 1) trace.rank = rank_;
    for (ProcessGroup& group : trace.groups) {
      const auto known = configured_.find(group.name);
      if (group.name.empty() || known == configured_.end()) continue;
      if (group.ranks.empty()) group.ranks = known->second.ranks;
      if (group.description.empty()) group.description = known->second.description;
      if (group.size == 0) group.size = static_cast<int>(group.ranks.size());
    }
    out.push_back(std::move(trace));
  }
  return out;
}

}  // namespace

std::vector<RankTrace> read_kineto_trace(const std::filesystem::path& path, const KernelNames& rules,
                                         const ReadProgress& progress) {
  GzipInput input(path);
  std::istream stream(&input);
  KinetoReader reader(path.string(), rules, input, progress);
  nlohmann::json::sax_parse(stream, &reader);
  return reader.finish();
}

}  // namespace sextant
