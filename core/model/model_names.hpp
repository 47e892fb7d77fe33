// What may a model name mean that is none of ours? Another family says what it lacks or that its config.json is read; a
// size, a slip, or a part of a name says which presets come near. Used by core/model/model_files alone.
#pragma once

#include <filesystem>
#include <string>

namespace sextant {

// `what` goes behind the name (", a mixture of experts"), `hint` says what to do; either may be empty.
struct UnknownModel {
  std::string what, hint;
};

// `presets` is the folder that holds models/*.json.
UnknownModel unknown_model(const std::string& name, const std::filesystem::path& presets);

}  // namespace sextant
