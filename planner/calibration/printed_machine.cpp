#include "planner/calibration/printed_machine.hpp"

#include <algorithm>
#include <cmath>

#include "core/cluster/device_words.hpp"
#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

bool line_has(std::string_view line, std::string_view words) {
  return line.find(words) != std::string_view::npos;
}

// "GPU 0: NVIDIA A100-SXM4-40GB (UUID: ...)": up to what cannot be of a name.
void read_device(std::string_view line, PrintedMachine& printed) {
  for (const std::string_view maker : kDeviceMakers) {
    const std::size_t at = line.find(maker);
    if (at == std::string_view::npos) continue;
    std::string_view name = line.substr(at);
    for (const std::string_view end : {"'", "\"", "(", ",", "|", ";", "  ", " with ", "\t", "\r"})
      name = name.substr(0, name.find(end));
    name = without_blanks(name);
    // "NVIDIA Release 24.07" and "NVIDIA H100 is recommended" name no device, or not this one's.
    if (name.size() > 40 || !name.starts_with(maker) || !names_product(name.substr(maker.size()))) return;
    if (std::ranges::find(printed.devices, name) == printed.devices.end()) printed.devices.emplace_back(name);
    return;
  }
}

// "NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB ; OOB eth0:10.0.0.1<0>"
void read_nics(std::string_view line, PrintedMachine& printed) {
  constexpr std::string_view kFound = "NET/IB : Using ";
  const std::size_t at = line.find(kFound);
  if (at == std::string_view::npos) return;
  std::string_view list = line.substr(at + kFound.size());
  list = list.substr(0, list.find("OOB"));
  int nics = 0;
  for (std::size_t i = list.find('['); i != std::string_view::npos; i = list.find('[', i + 1))
    if (i + 1 < list.size() && list[i + 1] >= '0' && list[i + 1] <= '9') ++nics;
  printed.nics = std::max(printed.nics, nics);
  if (printed.network.empty() || printed.network == "ethernet")
    printed.network = line_has(list, "/RoCE") ? "roce" : "infiniband";
}

// "comm 0x5639e9f0e8c0 rank 0 nRanks 24 nNodes 3 localRanks 8 localRank 0 MNNVL 0": subgroups have fewer.
void read_communicator(std::string_view line, PrintedMachine& printed) {
  const auto all = number_after(line, "nRanks "), here = number_after(line, "localRanks ");
  if (!all || !here || !line_has(line, "nNodes")) return;
  const int ranks = static_cast<int>(std::lround(*all)), local = static_cast<int>(std::lround(*here));
  if (ranks < printed.of_ranks) return;
  printed.gpus_per_node = ranks > printed.of_ranks ? local : std::max(printed.gpus_per_node, local);
  printed.of_ranks = ranks;
}

void read_network(std::string_view line, PrintedMachine& printed) {
  if (!line_has(line, "NCCL INFO")) return;
  read_communicator(line, printed);
  read_nics(line, printed);
  if (line_has(line, "Using network Socket")) printed.network = "ethernet";
  if (line_has(line, "Using network AWS Libfabric") || line_has(line, "NET/OFI Selected Provider is efa"))
    printed.network = "efa";
}

}  // namespace

PrintedMachine printed_machine(std::string_view text) {
  PrintedMachine printed;
  each_line(text, [&](std::string_view line, int) {
    read_device(line, printed);
    read_network(line, printed);
  });
  // DeepSpeed's launcher: "nnodes=2, num_local_procs=8, node_rank=0".
  if (const auto processes = number_after(text, "num_local_procs=")) {
    printed.gpus_per_node = static_cast<int>(std::lround(*processes));
    printed.of_ranks = 0;
  }
  return printed;
}

}  // namespace sextant
