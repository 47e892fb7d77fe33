#include "core/runs/presets_read.hpp"

#include <map>
#include <mutex>
#include <tuple>

#include "core/cluster/cluster_files.hpp"

namespace sextant {
namespace {

template <class Spec>
using Read = std::map<std::tuple<std::string, std::string, std::string>, Spec>;  // folder, name, generation

}  // namespace

struct PresetsRead::Known {
  std::mutex mutex;
  Read<StackSpec> stacks;
  Read<ClusterSpec> clusters;
  Read<DeviceSpec> devices;

  // Two threads that ask for one at once may both read it.
  template <class Spec, class Load>
  Spec get(Read<Spec>& read, const typename Read<Spec>::key_type& key, Load load) {
    {
      const std::lock_guard lock(mutex);
      if (const auto found = read.find(key); found != read.end()) return found->second;
    }
    Spec spec = load();
    const std::lock_guard lock(mutex);
    return read.try_emplace(key, std::move(spec)).first->second;
  }
};

PresetsRead::PresetsRead() : known_(std::make_shared<Known>()) {}

StackSpec PresetsRead::stack(const std::string& name, const std::filesystem::path& presets,
                             std::string_view generation) const {
  return known_->get(known_->stacks, {presets.string(), name, std::string(generation)},
                     [&] { return load_stack(name, presets, generation); });
}

ClusterSpec PresetsRead::cluster(const std::string& what, const std::filesystem::path& presets) const {
  return known_->get(known_->clusters, {presets.string(), what, ""},
                     [&] { return load_cluster(what, presets); });
}

DeviceSpec PresetsRead::device(const std::string& name, const std::filesystem::path& presets) const {
  return known_->get(known_->devices, {presets.string(), name, ""},
                     [&] { return load_device(name, presets); });
}

}  // namespace sextant
