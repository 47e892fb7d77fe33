// Why has a log no step that can be read? What printed it, where that is known, and what to do instead.
#pragma once

#include <string_view>

#include "core/base/error.hpp"

namespace sextant {

// Of a text in which no line of steps was found.
Problem unread_log(std::string_view text, const std::string& file);

}  // namespace sextant
