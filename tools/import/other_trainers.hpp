// Configurations of trainers that are recognised and not read: their layout stands in code, in another file, or in words that no reader
// here knows. Each is told by what nobody else writes, so that none is taken for a file of another framework.
#pragma once

#include <optional>
#include <string>

namespace sextant {

struct OtherTrainer {
  std::string what;  // "a GPT-NeoX configuration"
  std::string how;   // its layout as a key where it states one, and which option takes what
};

// Of the text of a file, whatever its name; nothing where it is none of them.
std::optional<OtherTrainer> other_trainer(const std::string& text);

}  // namespace sextant
