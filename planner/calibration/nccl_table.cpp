#include "planner/calibration/nccl_table.hpp"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
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

// "# Collective test starting: all_gather_perf" or a command line; then the file's own name.
std::optional<std::size_t> named_program(std::string_view text, const std::string& file) {
  for (std::size_t i = 0; i < kPrograms.size(); ++i)
    if (text.find(fmt::format("{}_perf", kPrograms[i])) != std::string_view::npos) return i;
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

// What decides the collective where nothing is named.
struct Signs {
  bool reduces = true, rooted = false;
  double bus_over_algorithm = 0;
};

// size count type redop [root] time algbw busbw ...
void read_line(std::string_view line, int at, NcclTable& table, Signs& signs) {
  const auto cells = cells_of(line);
  if (cells.size() < 7) return;
  const auto real = [](std::string_view s) { return number_after(s, "").value_or(-1); };
  const auto bytes = whole_number(cells[0]).value_or(-1), count = whole_number(cells[1]).value_or(-1);
  if (bytes <= 0 || count <= 0 || whole_number(cells[2])) return;
  // The root is a whole number, a time is not always; older versions print no root.
  const std::size_t time = cells[4] == "-1" || cells.size() >= 13 ? 5 : 4;
  if (time + 2 >= cells.size()) return;
  if (const auto stated = number_after(cells[time], ""); stated && !(*stated > 0))
    throw ConfigError(Problem{fmt::format("{}:{}", table.file, at), "time", std::string(cells[time]),
                              "microseconds above 0", "the run did not end well, or the line was cut"});
  const double us = real(cells[time]), algorithm = real(cells[time + 1]), bus = real(cells[time + 2]);
  if (us <= 0) return;
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
    refuse("a table without a reduction that does not say which program printed it",
           fmt::format("tables of all_gather and alltoall look the same: --nccl {}=all_gather", file));
  // 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter.
  return signs.bus_over_algorithm >= 1.0 ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter;
}

// One rank and the node that it sits on; nodes are numbered as they are first named.
void add_rank(const std::string& host, std::map<std::string, int>& hosts, NcclTable& table) {
  const auto node = hosts.try_emplace(host, table.nodes);
  if (node.second) ++table.nodes;
  table.node_of.push_back(node.first->second);
  ++table.ranks;
}

void read_text_results(const std::string& text, NcclTable& table, Signs& signs) {
  std::map<std::string, int> hosts;
  each_line(text, [&](std::string_view line, int number) {
    if (const std::size_t at = line.find("Rank "); at != std::string_view::npos) {
      if (const std::size_t on = line.find(" on ", at); on != std::string_view::npos) {
        std::string_view host = line.substr(on + 4);
        host.remove_prefix(std::min(host.find_first_not_of(' '), host.size()));
        // "#  Rank  0 Group  0 Pid  4 on  node0 device  0 [0x07] NVIDIA A100-SXM4-80GB"
        if (const std::size_t bus = line.find("] ", on);
            bus != std::string_view::npos && table.device.empty()) {
          const std::string_view device = line.substr(bus + 2);
          table.device = std::string(device.substr(0, device.find_last_not_of(" \r") + 1));
        }
        add_rank(std::string(host.substr(0, host.find(' '))), hosts, table);
      }
      return;
    }
    read_line(line, number, table, signs);
  });
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
    if (table.device.empty() && info != device.end() && info->is_string()) table.device = *info;
  }
  for (const auto& result : j.value("results", nlohmann::json::array())) {
    if (!result.is_object()) continue;
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

NcclTable parse_nccl_table(std::string_view as_written, const std::string& file,
                           std::optional<CollectiveKind> stated) {
  NcclTable table;
  table.file = file;
  Signs signs;
  std::string text;  // that may name the program
  const nlohmann::json j = nlohmann::json::parse(as_written, nullptr, false);
  if (j.is_object()) {
    read_json_results(j, table, signs);
    text = j.value("args", nlohmann::json::array())
               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } else if (const auto first = as_written.find_first_not_of(" \t\r\n");
             first != std::string_view::npos && as_written[first] == '{') {
    throw ConfigError(
        Problem{file, "", "JSON that ends early", "the whole file that -J of nccl-tests writes", ""});
  } else {
    text = without_launcher_tags(as_written);
    read_text_results(text, table, signs);
  }
  if (table.samples.empty() || table.ranks < 2)
    throw ConfigError(
        Problem{file, "", fmt::format("{} sizes of {} ranks", table.samples.size(), table.ranks),
                "output of nccl-tests, text or JSON (-J), with its list of ranks and at least one size", ""});
  table.kind = stated ? *stated : kind_of_program(signs, text, file);
  return table;
}

}  // namespace sextant
