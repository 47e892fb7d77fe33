// Files of other frameworks where a plan was asked for: which they are, and the plan key that says the same where that can be told.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace sextant {

// "it looks like a DeepSpeed configuration; state it as a key: z3.mbs1.oo100.po". Nothing for what is a plan file, or may be one.
std::optional<std::string> foreign_config(const std::filesystem::path&);

// "tp=8,pp=2" as a key: "tp8.pp2"; nothing where that is no key.
std::optional<std::string> key_of_assignments(const std::string& text);

}  // namespace sextant
