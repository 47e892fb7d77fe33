#include "core/base/packed_text.hpp"

#include <array>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <zlib.h>

#include "core/base/error.hpp"

namespace sextant {

namespace {

struct Packer {
  std::string_view magic, name, unpack;
};
constexpr std::array kOtherPackers = {Packer{"\x28\xb5\x2f\xfd", "zstd", "zstd -d"},
                                      Packer{"\xfd"
                                             "7zXZ",
                                             "xz", "xz -d"},
                                      Packer{"BZh9", "bzip2", "bzip2 -d"},
                                      Packer{"PK\x03\x04", "zip", "unzip"}};

[[noreturn]] void damaged(const std::string& file, std::string found) {
  throw ConfigError(Problem{file, "", std::move(found), "a gzip file, whole",
                            "was it downloaded whole? gzip -t checks it"});
}

}  // namespace

std::string unpacked(std::string text, const std::string& file, std::uintmax_t limit) {
  for (const Packer& p : kOtherPackers)
    if (text.starts_with(p.magic))
      throw ConfigError(Problem{file, "", fmt::format("packed with {}", p.name),
                                "text, packed with gzip or not", fmt::format("unpack it: {}", p.unpack)});
  if (!text.starts_with("\x1f\x8b")) return text;
  z_stream z{};
  if (::inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) throw BackendError("zlib cannot begin to unpack");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&z, ::inflateEnd);
  z.next_in = reinterpret_cast<Bytef*>(text.data());
  z.avail_in = static_cast<uInt>(text.size());
  std::string out;
  std::array<char, 1 << 16> piece{};
  for (int code = Z_OK; code != Z_STREAM_END || z.avail_in > 0;) {
    if (code == Z_STREAM_END) {
      if (*z.next_in == 0) {  // padding
        ++z.next_in;
        --z.avail_in;
        continue;
      }
      (void)::inflateReset(&z);
    }
    z.next_out = reinterpret_cast<Bytef*>(piece.data());
    z.avail_out = static_cast<uInt>(piece.size());
    code = ::inflate(&z, Z_NO_FLUSH);
    if (code == Z_BUF_ERROR) damaged(file, "gzip data that end early");
    if (code != Z_OK && code != Z_STREAM_END)
      damaged(file, fmt::format("no gzip data at or behind byte {}", text.size() - z.avail_in));
    out.append(piece.data(), piece.size() - z.avail_out);
    if (out.size() > limit)
      throw ConfigError(Problem{file, "", "larger than that once unpacked",
                                fmt::format("at most {} MiB of text", limit >> 20), "give a part of it"});
  }
  return out;
}

std::string read_packed_text(const std::filesystem::path& path, std::uintmax_t limit) {
  return unpacked(read_text_file(path, limit), path.string(), limit);
}

}  // namespace sextant
