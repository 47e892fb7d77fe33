#include "planner/calibration/nccl_table.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/shallow_json.hpp"
#include "core/base/words.hpp"
#include "planner/calibration/launcher_tags.hpp"
#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

// Programs of nccl-tests; the first three are what training layouts use. Longer names first where one holds another.
constexpr std::array<std::string_view, 10> kPrograms = {
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv",
    "broadcast",  "hypercube",  "gather",         "scatter",  "reduce"};
constexpr std::size_t kUsed = 3;

// "# Collective test starting: all_gather_perf" or a command line.
std::optional<std::size_t> program_in(std::string_view text) {
  for (std::size_t i = 0; i < kPrograms.size(); ++i)
    if (text.find(fmt::format("{}_perf", kPrograms[i])) != std::string_view::npos) return i;
  return std::nullopt;
}

// What the text says; then the file's own name.
std::optional<std::size_t> named_program(std::string_view text, const std::string& file) {
  if (const auto said = program_in(text)) return said;
  std::string name = lower(file.substr(std::min(file.size(), file.find_last_of('/') + 1)));
  std::erase_if(name, [](char c) { return c == '_' || c == '-'; });
  for (const auto& [word, program] :
       {std::pair{"allreduce", 0}, {"allgather", 1}, {"reducescatter", 2}, {"alltoall", 3}})
    if (name.find(word) != std::string::npos) return static_cast<std::size_t>(program);
  return std::nullopt;
}

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  for (std::string_view rest = line; !rest.empty();) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r"), rest.size()));
    const std::size_t end = std::min(rest.find_first_of(" \t\r"), rest.size());
    if (end > 0) cells.push_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  return cells;
}

// mpirun --tag-output tags each part of a line that is written by itself: "sum -1[1,0]<stdout>:    587.0", or "[0]" for short.
std::string without_tags_inside(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size();) {
    const std::size_t end = line[i] == '[' ? line.find_first_not_of("0123456789,", i + 1) : i;
    if (end == i || end == std::string_view::npos || line[end] != ']' || end == i + 1) {
      out += line[i++];
      continue;
    }
    i = end + 1;
    for (const std::string_view stream : {"<stdout>", "<stderr>", ":"})
      if (line.substr(i).starts_with(stream)) i += stream.size();
    out += ' ';
  }
  return out;
}

// From the size on, behind which a count and a number format stand: time stamps and names of pods may come before. Empty: no such row.
std::vector<std::string_view> row_of(std::string_view line) {
  constexpr std::array<std::string_view, 12> kFormats = {"float", "half",   "bfloat16", "double",
                                                         "int8",  "uint8",  "int32",    "uint32",
                                                         "int64", "uint64", "f8e4m3",   "f8e5m2"};
  auto cells = cells_of(line);
  const auto number = [&](std::size_t i) { return whole_number(cells[i]).value_or(-1) > 0; };
  for (std::size_t i = 2; i < cells.size(); ++i)
    if (std::ranges::find(kFormats, cells[i]) != kFormats.end() && number(i - 1) && number(i - 2)) {
      cells.erase(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(i - 2));
      return cells;
    }
  return {};
}

// What decides the collective where nothing is named.
struct Signs {
  bool reduces = true, rooted = false;
  double bus_over_algorithm = 0;
};

// What the program checked and found wrong says that the transfers were, whatever time they took. `at`: the file, and the line or field.
void require_right(std::string at, const std::string& wrong) {
  const bool counted = !wrong.empty() && wrong.find_first_not_of("0123456789") == std::string::npos;
  if (!counted || wrong.find_first_not_of('0') == std::string::npos) return;
  throw ConfigError(
      Problem{std::move(at), "#wrong", fmt::format("{} elements", wrong), "0",
              "the collective's results were wrong, so that its times cannot be used: find the device, "
              "link or library that corrupts them, and measure again"});
}

// size count type redop [root] time algbw busbw #wrong, and the last four again in place. Versions before 2.12 print the largest
// error instead of a count: 2e-07.
void read_line(std::string_view as_written, int at, NcclTable& table, Signs& signs) {
  const std::string line = without_tags_inside(as_written);
  const auto cells = row_of(line);
  if (cells.size() < 7) return;
  const auto real = [](std::string_view s) { return number_after(s, "").value_or(-1); };
  const auto bytes = whole_number(cells[0]).value_or(-1);
  // The root is a whole number, a time is not always; older versions print no root.
  const std::size_t time = cells[4] == "-1" || cells.size() >= 13 ? 5 : 4;
  if (time + 2 >= cells.size()) return;
  if (const auto stated = number_after(cells[time], ""); stated && !(*stated > 0))
    throw ConfigError(Problem{fmt::format("{}:{}", table.file, at), "time", std::string(cells[time]),
                              "microseconds above 0", "the run did not end well, or the line was cut"});
  const double us = real(cells[time]), algorithm = real(cells[time + 1]), bus = real(cells[time + 2]);
  if (us <= 0) return;
  for (const std::size_t wrong : {time + 3, time + 7})
    if (wrong < cells.size()) require_right(fmt::format("{}:{}", table.file, at), std::string(cells[wrong]));
  signs.reduces = cells[3] != "none";
  signs.rooted = time == 5 && cells[4] != "-1";
  table.samples.push_back({bytes, us * 1e-6});
  if (algorithm > 1) signs.bus_over_algorithm = bus / algorithm;
}

CollectiveKind kind_of_program(const Signs& signs, std::string_view text, const std::string& file) {
  const auto refuse = [&](std::string found, std::string hint) {
    throw ConfigError(Problem{file, "", std::move(found),
                              "a table of all_reduce_perf, all_gather_perf or reduce_scatter_perf",
                              std::move(hint)});
  };
  if (const auto named = named_program(text, file)) {
    if (*named >= kUsed)
      refuse(fmt::format("a table of {}_perf", kPrograms[*named]), "no layout uses this collective");
    return static_cast<CollectiveKind>(*named);
  }
  if (signs.rooted) refuse("a table of a collective with a root", "no layout uses these");
  if (!signs.reduces)
    refuse("a table without a reduction that does not name the program that printed it",
           fmt::format("tables of all_gather and alltoall look the same: --nccl {}=all_gather", file));
  // 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter.
  return signs.bus_over_algorithm >= 1.0 ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter;
}

// What is stated beside the file may say what the table does not, and not something else.
void require_kind(CollectiveKind stated, const Signs& signs, std::string_view text, const std::string& file) {
  const auto program = program_in(text);
  const bool reduces = stated != CollectiveKind::all_gather;
  if (program ? static_cast<std::size_t>(stated) == *program : signs.reduces == reduces) return;
  throw ConfigError(Problem{
      file, "",
      program         ? fmt::format("a table of {}_perf", kPrograms[*program])
      : signs.reduces ? "a table of a reduction (redop)"
                      : "a table without a reduction (redop none)",
      fmt::format("one of {}_perf, as --nccl FILE={} states", name(stated), name(stated)),
      program && *program < kUsed ? fmt::format("leave out ={}: the file already states it", name(stated))
                                  : "give the output of that program"});
}

// One rank and the node that it sits on; nodes are numbered as they are first named.
void add_rank(const std::string& host, std::map<std::string, int>& hosts, NcclTable& table) {
  const auto node = hosts.try_emplace(host, table.nodes);
  if (node.second) ++table.nodes;
  table.node_of.push_back(node.first->second);
  ++table.ranks;
}

// The numbers of its list of ranks, as lines come. One job lists each once, before its sizes.
class ListedRanks {
 public:
  explicit ListedRanks(const NcclTable& table) : table_(table) {}

  void add(int rank, int line) {
    if (seen_.insert(rank).second) return;
    if (!table_.samples.empty())
      refuse(line, "a second table", "one table a file",
             "copy each table, with its list of ranks, to a file of its own");
    refuse(line, fmt::format("rank {} a second time, as several jobs that ran at once list it", rank),
           "one job",
           "processes that do not know of each other: build nccl-tests with MPI=1, and start it with mpirun "
           "or srun --mpi");
  }

  // A list that was cut says neither ranks nor nodes.
  void check_whole() const {
    if (seen_.empty() || *seen_.rbegin() + 1 == static_cast<int>(seen_.size())) return;
    throw ConfigError(Problem{table_.file, "ranks",
                              fmt::format("{} of {} ranks in its list", seen_.size(), *seen_.rbegin() + 1),
                              "the whole list, which gives the number of ranks on each node", ""});
  }

 private:
  [[noreturn]] void refuse(int line, std::string found, std::string expected, std::string hint) const {
    throw ConfigError(Problem{fmt::format("{}:{}", table_.file, line), "ranks", std::move(found),
                              std::move(expected), std::move(hint)});
  }

  const NcclTable& table_;
  std::set<int> seen_;
};

// What the driver calls a rank's device. A collective is as fast as its slowest rank, and no cluster file has two kinds.
void add_device(std::string_view name, NcclTable& table) {
  if (table.device.empty()) table.device = std::string(name);
  if (name != table.device)
    throw ConfigError(Problem{table.file, "ranks", fmt::format("{} and {}", table.device, name),
                              "ranks of one device", "measure the nodes of each device by themselves"});
}

void read_text_results(const std::string& text, NcclTable& table, Signs& signs) {
  std::map<std::string, int> hosts;
  ListedRanks listed(table);
  each_line(text, [&](std::string_view line, int number) {
    // "#  Rank  0 Group  0 Pid  4 on  node0 device  0 [0x07] NVIDIA A100-SXM4-80GB"
    const std::size_t at = line.find("Rank "), on = line.find(" on ", at), device = line.find(" device ", on);
    const auto rank = at == std::string_view::npos ? std::nullopt : count_after(line.substr(at), "Rank ");
    if (!rank || on == std::string_view::npos || device == std::string_view::npos)
      return read_line(line, number, table, signs);
    listed.add(*rank, number);
    if (const std::size_t bus = line.find("] ", device); bus != std::string_view::npos)
      add_device(without_blanks(line.substr(bus + 2)), table);
    std::string_view host = line.substr(on + 4);
    host.remove_prefix(std::min(host.find_first_not_of(' '), host.size()));
    add_rank(std::string(host.substr(0, host.find(' '))), hosts, table);
  });
  listed.check_whole();
}

// A number, or one as text: times that were not taken are "nan".
double json_number(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : -1;
}

// "-J FILE" of nccl-tests a0b82b2 (src/util.cu), file version 3: devices[] and results[] with the out-of-place time in microseconds.
void read_json_results(const nlohmann::json& j, NcclTable& table, Signs& signs) {
  std::map<std::string, int> hosts;
  for (const auto& device : j.value("devices", nlohmann::json::array())) {
    if (!device.is_object()) continue;
    add_rank(device.value("hostname", nlohmann::json("")).dump(), hosts, table);
    const auto info = device.find("device_info");
    if (info != device.end() && info->is_string()) add_device(info->get<std::string>(), table);
  }
  int row = -1;
  for (const auto& result : j.value("results", nlohmann::json::array())) {
    ++row;
    if (!result.is_object()) continue;
    for (const char* place : {"out_of_place", "in_place"})
      if (const auto at = result.find(place); at != result.end() && at->is_object())
        if (const auto wrong = at->find("nwrong"); wrong != at->end())
          require_right(fmt::format("{}: results[{}].{}", table.file, row, place),
                        wrong->is_number()   ? fmt::format("{:.0f}", wrong->get<double>())
                        : wrong->is_string() ? wrong->get<std::string>()
                                             : "");
    const auto times = result.find("out_of_place");
    const double bytes = json_number(result, "size");
    if (times == result.end() || !times->is_object() || bytes < 1 || bytes > 1e18) continue;
    const double us = std::max(json_number(*times, "time"), json_number(*times, "cpu_time"));
    if (us <= 0) continue;
    table.samples.push_back({static_cast<std::int64_t>(bytes), us * 1e-6});
    const auto word = [&](const char* key) { return result.value(key, nlohmann::json("")); };
    signs.reduces = word("redop") != "none";
    signs.rooted = word("root").is_string() ? word("root") != "-1" : word("root") != -1;
    if (const double algorithm = json_number(*times, "alg_bw"); algorithm > 1)
      signs.bus_over_algorithm = json_number(*times, "bus_bw") / algorithm;
  }
}

}  // namespace

NcclTable parse_nccl_table(std::string_view bytes, const std::string& file,
                           std::optional<CollectiveKind> stated) {
  const std::string as_written = in_utf8(bytes);
  NcclTable table;
  table.file = file;
  Signs signs;
  std::string text;  // that may name the program
  const nlohmann::json j = json_or_discarded(as_written);
  if (j.is_object()) {
    read_json_results(j, table, signs);
    text = j.value("args", nlohmann::json::array())
               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } else if (const auto first = as_written.find_first_not_of(" \t\r\n");
             first != std::string_view::npos && as_written[first] == '{' &&
             // An object a line is how containers log: Docker's {"log":"#  Rank  0 ...\n","stream":"stdout"}.
             !json_or_discarded(as_written.substr(first, as_written.find('\n', first) - first)).is_object()) {
    throw ConfigError(
        Problem{file, "", "JSON that ends early", "the whole file that -J of nccl-tests writes", ""});
  } else {
    table.machine = printed_machine(as_written);
    text = without_launcher_tags(as_written);
    read_text_results(text, table, signs);
  }
  if (table.samples.empty() || table.ranks < 2)
    throw ConfigError(Problem{
        file, "",
        fmt::format("{} size{} of {} rank{}", table.samples.size(), table.samples.size() == 1 ? "" : "s",
                    table.ranks, table.ranks == 1 ? "" : "s"),
        "output of nccl-tests, text or JSON (-J), with its list of ranks and at least one size",
        table.samples.empty() ? "rows of sizes give the rates; the average bandwidth at the end does not"
        : table.ranks == 0
            ? "which GPUs took part is in the lines before the sizes, '#  Rank  0 Group  0 Pid ... on "
              "HOST device  0 [0x10] NVIDIA ...': give the whole output"
            : "one rank sends nothing: start it on several GPUs (-g 8, or mpirun)"});
  if (stated) require_kind(*stated, signs, text, file);
  table.kind = stated ? *stated : kind_of_program(signs, text, file);
  return table;
}

}  // namespace sextant
