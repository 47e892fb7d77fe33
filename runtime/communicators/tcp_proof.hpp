// How processes of a job prove to each other that they know its secret, without sending it: each gives the other a random
// number, and gets back a keyed digest (HMAC-SHA-256, RFC 2104, of OpenSSL's libcrypto) of it and of what is claimed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace sextant {

using Proof = std::array<std::uint8_t, 32>;
using Nonce = std::array<std::uint8_t, 32>;

Nonce random_nonce();  // throws BackendError where the system gives no random numbers

class Prover {
 public:
  explicit Prover(std::string secret) : secret_(std::move(secret)) {}
  // The digest of `role` (so that no proof serves in another place) and of the values, which have no padding.
  template <class... T>
  Proof of(std::string_view role, const T&... values) const {
    static_assert((std::has_unique_object_representations_v<T> && ...));
    std::string text(role);
    text += '\0';
    (text.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
    return digest(text);
  }

 private:
  Proof digest(std::string_view text) const;
  std::string secret_;
};

bool same_proof(const Proof&, const Proof&);  // in a time that does not depend on where they differ

}  // namespace sextant
