// The presets that rows of a table name, each read once: a table of a thousand rows names a few dozen.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/cluster/cluster_spec.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

// Copies share what was read. Several threads may ask at once. Errors are those of load_stack, load_cluster and load_device.
class PresetsRead {
 public:
  PresetsRead();
  StackSpec stack(const std::string& name, const std::filesystem::path& presets,
                  std::string_view generation = {}) const;
  ClusterSpec cluster(const std::string& what, const std::filesystem::path& presets) const;
  DeviceSpec device(const std::string& name, const std::filesystem::path& presets) const;

 private:
  struct Known;
  std::shared_ptr<Known> known_;
};

}  // namespace sextant
