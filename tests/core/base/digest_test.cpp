// System: the digest that names files. Expectation: that of the XXH3-128 reference (xxhsum -H2), and of bytes in pieces that
// of the whole.
#include "core/base/digest.hpp"

#include <gtest/gtest.h>

namespace sextant::testing {
namespace {

TEST(Digest, IsXxh3) {
  EXPECT_EQ(digest(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest("sextant"), "80f9ffefafc6781e2946202168425fe0");
  EXPECT_EQ(short_digest("sextant"), 0x80f9ffefU);
}

TEST(Digest, OfPiecesIsThatOfTheWhole) {
  std::string text(5000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i % 251);
  for (const std::size_t piece : {1UL, 64UL, 241UL, 4999UL}) {
    Digest streamed;
    EXPECT_EQ(streamed.text(), digest(""));
    for (std::size_t at = 0; at < text.size(); at += piece)
      streamed.add(std::string_view(text).substr(at, piece));
    EXPECT_EQ(streamed.text(), digest(text)) << piece;
    const Digest moved = std::move(streamed);
    EXPECT_EQ(moved.text(), digest(text));
  }
  std::string other = text;
  other[4000] ^= 1;
  EXPECT_NE(digest(other), digest(text)) << "control";
}

}  // namespace
}  // namespace sextant::testing
