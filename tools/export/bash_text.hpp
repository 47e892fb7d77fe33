// Lines of bash that the exports share: words quoted where they must be, and arrays of options.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sextant {

// As one word of bash: plain where it may be, in single quotes otherwise.
std::string bash_word(const std::string&);

// Options of a command line: each a flag alone or with its values.
class BashOptions {
 public:
  explicit BashOptions(std::string array) : array_(std::move(array)) {}
  BashOptions& flag(const std::string& name) {
    lines_.push_back(name);
    return *this;
  }
  BashOptions& flag_if(bool given, const std::string& name) { return given ? flag(name) : *this; }
  BashOptions& option(const std::string& name, const std::string& value) {
    return flag(name + " " + bash_word(value));
  }
  BashOptions& option(const std::string& name, std::int64_t value) {
    return option(name, std::to_string(value));
  }
  // "MODEL_ARGS=(\n  --num-layers 32\n ...)\n"
  std::string text() const;
  bool empty() const { return lines_.empty(); }

 private:
  std::string array_;
  std::vector<std::string> lines_;
};

}  // namespace sextant
