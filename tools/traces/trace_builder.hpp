// Puts a rank's trace together while a file is read: names and groups once, launches joined to what they launched.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tools/traces/gpu_trace.hpp"
#include "tools/traces/kernel_names.hpp"

namespace sextant {

class TraceBuilder {
 public:
  TraceBuilder(const KernelNames& rules, RankTrace begun) : rules_(rules), trace_(std::move(begun)) {}

  // What it does is told by its name, once per name.
  std::uint32_t name(const std::string&);
  KernelClass class_of(std::uint32_t name) const { return classes_[name]; }
  std::uint32_t group(const ProcessGroup&);
  // `correlation`: the number by which profilers join a launch to what it launched; below 0: none.
  // What ends before it begins is left out. Like all that takes times it throws ConfigError where they are of no clock.
  void add(const DeviceActivity&, std::int64_t correlation);
  void launched(std::int64_t correlation, std::int64_t at_ns);
  // A range of the host that may mark a step.
  void range(const std::string& name, std::int64_t begin_ns, std::int64_t end_ns);
  // Sorted and joined. Of the marks those by the surest word.
  RankTrace finish();

 private:
  void check(std::int64_t at_ns) const;
  const KernelNames& rules_;
  RankTrace trace_;
  std::unordered_map<std::string, std::uint32_t> ids_;
  std::map<std::pair<std::string, std::string>, std::uint32_t> groups_;
  std::vector<KernelClass> classes_;
  std::vector<std::int64_t> correlations_;
  std::unordered_map<std::int64_t, std::int64_t> launches_;
  std::map<int, std::vector<StepMark>> marks_;
};

}  // namespace sextant
