// A timeline on disk, so that another command can join it with a prediction: sextant.timeline/1, JSON.
#pragma once

#include <filesystem>

#include "core/timeline/timeline.hpp"

namespace sextant {

void save_timeline(const std::filesystem::path&, const Timeline&);

// Throws ConfigError when it is not of this graph (`hash` and number of operations).
Timeline load_timeline(const std::filesystem::path&, std::uint64_t hash, std::size_t ops);

}  // namespace sextant
