// settings.py of the exports that train a LLaMA of their own: the model's shape as their scripts read it.
#pragma once

#include <string>

#include "core/plan/plan_file.hpp"

namespace sextant {

inline const char* python_bool(bool value) { return value ? "True" : "False"; }

// HIDDEN, LAYERS, ... ROPE_SCALING, one assignment or a few on a line; what a tuple holds is said above it.
std::string python_model_settings(const ModelSpec&);

// What every script takes of positions and scaling: plain rotary frequencies and those of llama3.
inline constexpr const char* kScriptRopeScaling = "llama3";

}  // namespace sextant
