// What tests of public measurements ask about most.
#pragma once

#include "tests/tools/verbs/call.hpp"

namespace sextant::public_question {

inline const Words kLlama7bOn8 = {"--model", "llama-2-7b", "--cluster", "1x8xa100-80gb"};

}  // namespace sextant::public_question
