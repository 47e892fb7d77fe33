// Text packed with gzip is unpacked, all else is refused with what would unpack it, and no bomb goes off.
#include "core/base/packed_text.hpp"

#include <array>
#include <string>

#include <gtest/gtest.h>
#include <zlib.h>

#include "core/base/error.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

std::string gzipped(const std::string& text) {
  z_stream z{};
  EXPECT_EQ(::deflateInit2(&z, Z_BEST_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string in = text, out(::deflateBound(&z, text.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(in.data());
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  ::deflateEnd(&z);
  return out;
}

std::string refusal(const std::string& bytes, std::uintmax_t limit = kMaxInputBytes) {
  try {
    unpacked(bytes, "x.log.gz", limit);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(PackedText, IsUnpackedAndOtherTextIsAsItWas) {
  const std::string text = "iteration 1\niteration 2\n";
  EXPECT_EQ(unpacked(text, "x.log"), text);
  EXPECT_EQ(unpacked("", "x.log"), "");
  EXPECT_EQ(unpacked(gzipped(text), "x.log.gz"), text);
  EXPECT_EQ(unpacked(gzipped(text) + gzipped("more"), "x.log.gz"), text + "more");  // as logs are rotated
  EXPECT_EQ(unpacked(gzipped(text) + std::string(512, '\0'), "x.log.gz"), text);
  const std::string large(300'000, 'x');
  EXPECT_EQ(unpacked(gzipped(large), "x.log.gz"), large);
  const TempDir dir;
  EXPECT_EQ(read_packed_text(dir.write("x.log.gz", gzipped(text))), text);
}

TEST(PackedText, DamageIsSaid) {
  const std::string whole = gzipped("iteration 1\niteration 2\n");
  EXPECT_NE(refusal(whole.substr(0, whole.size() - 9)).find("end early"), std::string::npos);
  std::string flipped = whole;
  flipped[whole.size() - 6] = static_cast<char>(flipped[whole.size() - 6] ^ 0x55);  // of the checksum
  EXPECT_NE(refusal(flipped).find("no gzip data at or behind byte"), std::string::npos);
  EXPECT_NE(refusal(whole + "<html>").find("no gzip data"), std::string::npos);
  EXPECT_EQ(refusal(whole), "");
}

TEST(PackedText, AsMuchAsIsAllowed) {
  const std::string mebibyte = gzipped(std::string(1 << 20, 'x'));
  EXPECT_LT(mebibyte.size(), 2000U);
  EXPECT_EQ(refusal(mebibyte, 1 << 20), "");
  EXPECT_NE(refusal(mebibyte, (1 << 20) - 1).find("larger than that once unpacked"), std::string::npos);
}

TEST(PackedText, OtherPackersAreNamed) {
  using namespace std::string_literals;
  for (const auto& [bytes, name] : {std::pair{"\x28\xb5\x2f\xfd\x00"s, "zstd -d"},
                                    {"\xfd"
                                     "7zXZ\x00"s,
                                     "xz -d"},
                                    {"BZh91AY"s, "bzip2 -d"},
                                    {"PK\x03\x04"s, "unzip"}})
    EXPECT_NE(refusal(bytes).find(name), std::string::npos) << name << ": " << refusal(bytes);
}

}  // namespace
}  // namespace sextant
