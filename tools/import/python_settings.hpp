// The settings that a function of a Python module returns, as far as they are literals: torchtitan's configurations. Nothing is run.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace sextant {

// Functions of the module that make a configuration, by name.
std::vector<std::string> config_functions(const std::string& text);

// Of one function: keyword arguments of its TrainingConfig(...), ParallelismConfig(...) and CompileConfig(...) as "training",
// "parallelism", "compile"; "model.flavor" of model_registry(...); "activation_checkpoint.mode" of SelectiveAC, FullAC or
// MemoryBudgetAC; "model.converters"; the module's constants as "constants". Values that are no literals and no arithmetic of constants are
// kept as text.
nlohmann::json python_settings(const std::string& text, const std::string& function);

}  // namespace sextant
