// Weights that a command is pointed at: judged as a whole before anything starts from them.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/model_slice.hpp"

namespace sextant {

// Values of a Hugging Face folder that holds the planned model; throws ConfigError with file and tensor.
WeightSource hugging_face_weights(const std::string& folder, const ModelSpec& planned);

}  // namespace sextant
