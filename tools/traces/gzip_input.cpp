#include "tools/traces/gzip_input.hpp"

#include "core/base/error.hpp"

namespace sextant {

GzipInput::GzipInput(const std::filesystem::path& path)
    : name_(path.string()), file_(gzopen(path.c_str(), "rb")), buffer_(std::size_t{256} << 10) {
  if (!file_)
    throw ConfigError(Problem{path.string(), "", "cannot be opened", "a file that can be read", ""});
  gzbuffer(file_, 1U << 18);
}

GzipInput::~GzipInput() { gzclose_r(file_); }

GzipInput::int_type GzipInput::underflow() {
  const int got = gzread(file_, buffer_.data(), static_cast<unsigned>(buffer_.size()));
  int code = Z_OK;
  std::string what = gzerror(file_, &code);
  if (what.starts_with(name_ + ": ")) what.erase(0, name_.size() + 2);  // it is said already
  if (code != Z_OK && code != Z_STREAM_END)
    damage_ = code == Z_BUF_ERROR ? "it ends in the middle of its packed data" : what;
  if (got <= 0) return traits_type::eof();
  setg(buffer_.data(), buffer_.data(), buffer_.data() + got);
  return traits_type::to_int_type(buffer_.front());
}

}  // namespace sextant
