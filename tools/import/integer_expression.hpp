// Whole-number expressions as bash and Python write them: 8*2048, $((NODES * 8)), (a > b) ? a : b.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace sextant {

// `value_of` gives the value of a name, or nothing. `/` and `//` divide and drop the remainder. Nothing where the text is no
// such expression, a name has no value, or a result is beyond 2^62.
std::optional<long long> evaluate_integer(
    std::string_view text, const std::function<std::optional<long long>(const std::string&)>& value_of);

}  // namespace sextant
