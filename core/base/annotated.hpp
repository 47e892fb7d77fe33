// Numbers that carry their origin: {"value": 2039, "unit": "GB/s", "source": "data sheet", "date": "2021-06"}
// says no more to the program than 2039 does. Preset files write them so; readers of specs see the plain
// form.
#pragma once

#include <filesystem>

#include <nlohmann/json_fwd.hpp>

namespace sextant {

// `annotated` with every {"value": v, ...} replaced by v. Throws ConfigError on an annotation that is none of
// value, low, high, unit, origin, source, date, note.
nlohmann::json plain_values(const nlohmann::json& annotated);

// A preset file in its plain form. Throws ConfigError naming the file.
nlohmann::json read_plain_values(const std::filesystem::path&);

// Throws ConfigError on a plan file, where another file was asked for.
void refuse_plan_file(const nlohmann::json&);

// What one field says, annotated or plain; its annotations are not judged.
const nlohmann::json& value_of(const nlohmann::json& stated);

}  // namespace sextant
