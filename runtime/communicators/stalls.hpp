// Who holds a run up, from what its processes say of whom they wait for.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/communicators/communicator.hpp"

namespace sextant {

// What a process says when it is asked.
struct Answer {
  std::vector<int> awaits;  // ranks of the world that it waits for a message from
  std::string state;        // lines about itself
  bool operator==(const Answer&) const = default;
};
// As it travels: between processes of one program. What is beyond 3,000 bytes of the state stays behind, so that MPI
// sends it whether or not it is awaited. What is no answer is one that waits for nobody.
std::string packed(const Answer&);
Answer unpacked(std::string_view);

// By rank of the world, of those that answered.
using Answers = std::map<int, Answer>;

// `answers` has an entry for `me`, whose state is left out.
Stalls stalls_from(int me, int size, const Answers& answers);

}  // namespace sextant
