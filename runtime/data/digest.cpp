#include "runtime/data/digest.hpp"

#include <new>

#include <fmt/format.h>
#include <xxhash.h>

namespace sextant {

struct DataDigest::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() {
    if (!xxh) throw std::bad_alloc();
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

DataDigest::DataDigest() : state_(std::make_unique<State>()) {}
DataDigest::~DataDigest() = default;
DataDigest::DataDigest(DataDigest&&) noexcept = default;
DataDigest& DataDigest::operator=(DataDigest&&) noexcept = default;

void DataDigest::add(std::string_view bytes) { XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size()); }
void DataDigest::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

std::string DataDigest::text() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string digest_of(std::string_view bytes) {
  DataDigest digest;
  digest.add(bytes);
  return digest.text();
}

}  // namespace sextant
