// A profile as `sextant profile` prints it: the machine's own measurements, the state of its GPU meanwhile, and the works.
#pragma once

#include "core/timeline/work_profile.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

void print_facts(Session&, const MachineFacts&);
void print_works(Session&, const WorkProfile&);

}  // namespace sextant
