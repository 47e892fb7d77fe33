// The words of a command, put together.
#pragma once

#include <string>
#include <vector>

namespace sextant::public_question {

using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline const Words kLlama7bOn8 = {"--model", "llama-2-7b", "--cluster", "1x8xa100-80gb"};

}  // namespace sextant::public_question
