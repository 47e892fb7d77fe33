// Files of other kinds where a plan was asked for: which they are, and the option that takes them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace sextant {

// "it looks like a DeepSpeed configuration: --from takes it". Nothing for what is a plan file, or may be one.
std::optional<std::string> foreign_config(const std::filesystem::path&);

// "tp=8,pp=2" as a key: "tp8.pp2"; nothing where that is no key.
std::optional<std::string> key_of_assignments(const std::string& text);

}  // namespace sextant
