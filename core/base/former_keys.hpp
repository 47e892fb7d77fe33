// What did an earlier version call it? Keys of files that have other names now are read for one version more, with one line on
// stderr.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace sextant {

struct FormerKey {
  const char *former, *present;
};

// Of an object that has both nothing is former: it is refused for the key that is not known.
bool has_former(const nlohmann::json& object, const FormerKey&);
// Its value under today's name, in place. False: there is nothing former.
bool take_present_key(nlohmann::json& object, const FormerKey&);

// "\"works\" is read as \"operations\"".
std::string change_text(const FormerKey&);
// One line for the user: "own.json: CHANGE, CHANGE; the next version reads the latter alone"; empty: nothing changed.
std::string former_text(const std::string& file, const std::vector<std::string>& changes);

}  // namespace sextant
