#include "runtime/communicators/tcp_proof.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "core/base/error.hpp"

namespace sextant {

Nonce random_nonce() {
  Nonce nonce;
  if (RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) != 1)
    throw BackendError("this machine gives no random numbers (RAND_bytes of libcrypto)");
  return nonce;
}

Proof Prover::digest(std::string_view text) const {
  Proof proof{};
  unsigned length = 0;
  if (!HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
            reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof.data(), &length) ||
      length != proof.size())
    throw BackendError("HMAC-SHA-256 of libcrypto failed");
  return proof;
}

bool same_proof(const Proof& a, const Proof& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace sextant
