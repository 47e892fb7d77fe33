#include "runtime/checkpoint/file_header.hpp"

#include <array>
#include <cstdint>
#include <fstream>

namespace sextant {

std::string file_header(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<char, 8> prefix{};
  in.read(prefix.data(), prefix.size());
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | static_cast<unsigned char>(prefix[static_cast<std::size_t>(i)]);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!in || error || size < prefix.size() || length > size - prefix.size()) return {};
  std::string header(prefix.size() + length, '\0');
  in.seekg(0);
  in.read(header.data(), static_cast<std::streamsize>(header.size()));
  return in ? header : std::string();
}

}  // namespace sextant
