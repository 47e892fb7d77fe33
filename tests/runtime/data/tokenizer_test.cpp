// Tokenizers alone: what goes in comes out again, whatever it is.
#include "runtime/data/tokenizer.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace sextant {
namespace {

TEST(ByteTokenizer, BytesAndBack) {
  const Tokenizer bytes = load_tokenizer("bytes");
  EXPECT_EQ(bytes.encode("a\xff\n"), (std::vector<std::int32_t>{'a', 0xff, '\n'}));
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  EXPECT_EQ(bytes.decode(bytes.encode(all)), all);
  const std::vector<std::int32_t> framed = {*bytes.info().bos, 'x', *bytes.info().eos, -1, 1000};
  EXPECT_EQ(bytes.decode(framed), "x");
  EXPECT_EQ(bytes.vocab_size(), 258);
  EXPECT_THROW(load_tokenizer("/no/such/file"), ConfigError);
}

}  // namespace
}  // namespace sextant
