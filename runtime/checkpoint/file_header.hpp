// The bytes of a safetensors file before its data, as they are: to be digested before anyone parses them.
#pragma once

#include <filesystem>
#include <string>

namespace sextant {

// Empty when the file has no such thing, or is not there. Throws BackendError where it cannot be read.
std::string file_header(const std::filesystem::path&);

}  // namespace sextant
