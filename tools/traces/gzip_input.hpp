// A file read from begin to end, packed by gzip or not, a piece at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <streambuf>
#include <string>
#include <vector>

#include <zlib.h>

namespace sextant {

class GzipInput final : public std::streambuf {
 public:
  // Throws ConfigError when the file cannot be opened.
  explicit GzipInput(const std::filesystem::path&);
  ~GzipInput() override;
  GzipInput(const GzipInput&) = delete;
  GzipInput& operator=(const GzipInput&) = delete;

  // Bytes of the file that were taken, as it lies on the disk.
  std::int64_t taken() const { return gzoffset(file_); }
  // Why it could not be read to its end: cut, or damaged. Empty: nothing is wrong so far.
  const std::string& damage() const { return damage_; }

 protected:
  int_type underflow() override;

 private:
  std::string name_;
  gzFile file_;
  std::vector<char> buffer_;
  std::string damage_;
};

}  // namespace sextant
