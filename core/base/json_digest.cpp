#include "core/base/json_digest.hpp"

#include <nlohmann/json.hpp>

#include "core/base/digest.hpp"

namespace sextant {

std::string digest_without(nlohmann::json object, std::initializer_list<const char*> fields) {
  for (const char* field : fields) object.erase(field);
  return digest(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace sextant
