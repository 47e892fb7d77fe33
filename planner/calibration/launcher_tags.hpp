// What launchers and terminals put into a program's output, taken off again: "[1,0]<stdout>:" (mpirun --tag-output), "0: " (srun -l),
// "[rank0]:" and "[default0]:" (torchrun), one of them behind another, colours, and Docker's lines of JSON. Where lines of several ranks
// stand between each other, those of the lowest rank are kept, and of the lowest one that prints what counts: Megatron-LM prints its
// arguments on the first rank and its steps on the last.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace sextant {

// Lines keep their numbers: those of other ranks become empty.
std::string without_launcher_tags(std::string_view text,
                                  const std::function<bool(std::string_view)>& counts = nullptr);

}  // namespace sextant
