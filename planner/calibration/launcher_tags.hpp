// What launchers and terminals put into a program's output, taken off again: "[1,0]<stdout>:" (mpirun --tag-output), "0: " (srun -l),
// "[rank0]:" and "[default0]:" (torchrun), one of them behind another, colours, and Docker's lines of JSON. Where lines of several ranks
// stand between each other, those of the lowest rank are kept, and of the lowest one that prints what counts: Megatron-LM prints its
// arguments on the first rank and its steps on the last.
#pragma once

#include <compare>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

// Who wrote a line. `task`: the number that mpirun or srun gives, of a rank, or of a node where each starts a launcher there;
// `machine`: that of a pod or host; `local`: torchrun's, a rank of its node.
struct LineTag {
  std::optional<int> machine = std::nullopt, task = std::nullopt, local = std::nullopt;
  auto operator<=>(const LineTag&) const = default;
};

// Lines keep their numbers: those of other ranks become empty. `tags`: that of each line, by its number - 1; empty where none has one.
std::string without_launcher_tags(std::string_view text,
                                  const std::function<bool(std::string_view)>& counts = nullptr,
                                  std::vector<LineTag>* tags = nullptr);

}  // namespace sextant
