// Whether this program is watched by a sanitizer, which makes it slow and reserves far more addresses than any limit leaves.
#pragma once

namespace sextant {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace sextant
