#include "tools/inputs/unknown_names.hpp"

#include <map>

#include <fmt/format.h>

namespace sextant {

std::vector<std::string> unknown_names(std::span<const std::string> notes) {
  constexpr std::string_view kUnknown = "is not known; taken as ";
  std::map<std::string, int> count;
  for (const std::string& note : notes)
    if (const std::size_t at = note.find(kUnknown); at != std::string::npos)
      ++count[note.substr(0, note.find(';', at + kUnknown.size()))];
  std::vector<std::string> out;
  for (const auto& [text, runs] : count)
    out.push_back(fmt::format("{} run{}: {}", runs, runs == 1 ? "" : "s", text));
  return out;
}

}  // namespace sextant
