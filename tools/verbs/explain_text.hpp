// What `sextant explain` prints of its findings, part by part.
#pragma once

#include "tools/inputs/planning.hpp"
#include "tools/inputs/verb.hpp"
#include "tools/output/explained.hpp"

namespace sextant {

// Why not this layout: the lines, where its time differs and what its heaviest stage holds.
void print_why(Session&, const Question&, const Asked&, RankBy);
// Why the chosen layout, what it costs, what is next best.
void print_choice(Session&, const Planning&, const Explained&);
void print_alternatives(Session&, const Explained&);
void print_sensitivities(Session&, const Explained&);

}  // namespace sextant
