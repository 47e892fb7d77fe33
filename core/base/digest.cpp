#include "core/base/digest.hpp"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sextant {
namespace {

std::string hex_text(const XXH128_hash_t& hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

struct Digest::State {
  XXH3_state_t xxh = {};
};

Digest::Digest() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

std::string Digest::text() const { return hex_text(XXH3_128bits_digest(&state_->xxh)); }

std::string digest(std::span<const std::byte> bytes) {
  return hex_text(XXH3_128bits(bytes.data(), bytes.size()));
}

std::uint32_t short_digest(std::string_view text) {
  constexpr std::size_t kDigits = 8;
  constexpr int kHexadecimal = 16;
  return static_cast<std::uint32_t>(std::stoul(digest(text).substr(0, kDigits), nullptr, kHexadecimal));
}

}  // namespace sextant
