// What launchers and terminals put into a program's output, taken off again: "[1,0]<stdout>:" (mpirun --tag-output), "0: " (srun -l),
// "[rank0]:" (torchrun --tee), colours. Where lines of several ranks stand between each other, those of the lowest rank are kept: every
// rank of a job prints the same steps.
#pragma once

#include <string>
#include <string_view>

namespace sextant {

// Lines keep their numbers: those of other ranks become empty.
std::string without_launcher_tags(std::string_view text);

}  // namespace sextant
