// What of a question contradicts itself, and what is remarked on it: each part by itself, for read_question.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "tools/inputs/inputs.hpp"

namespace sextant {

// A value from a flag that the model or batch contradicts is a problem of the command line.
void check_input(std::vector<Problem> problems, const std::string& flag);

// Of its plan, which is there.
std::vector<Problem> plan_problems(const Question&);

// Ranks of a layout that needs fewer than all nodes sit on the best ones, as with `plan --scale`.
void use_best_nodes(Question&);

// Throws ConfigError where the device has no such format.
void check_precision(const DeviceSpec&, Dtype compute, const std::string& stated_by);

// Eager or compiled blocks are presets of their own, with constants of their own.
StackSpec with_blocks(StackSpec, const std::string& blocks, const std::filesystem::path& presets,
                      std::string_view generation);

// No plan depends on it: said once, and refused where it is trained.
void remark_on_rope(const ModelSpec&, std::vector<std::string>& notes);

// Sequences longer than the model has positions: a note, or ConfigError where a table of them ends there.
void check_positions(const ModelSpec&, int seq_len, std::vector<std::string>& notes);

}  // namespace sextant
