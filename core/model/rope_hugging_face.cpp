#include "core/model/rope_hugging_face.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

using nlohmann::json;

// Of llama3, yarn and longrope: the longest sequence of the first training. Beside the scaling it goes before what the scaling
// itself says (transformers' standardize_rope_params), as does a family's default of longrope's. What is wrong with it; empty: nothing.
std::string read_original_positions(JsonReader& io, JsonReader& rope, int family_default, RopeScaling& s) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  const bool inside = rope.has(kKey), beside = io.has(kKey);
  rope.optional(kKey, s.original_max_positions);
  if (s.type == "linear" || s.type == "dynamic") return "";
  if (s.type == "llama3" && !inside && !beside) return fmt::format("{} is missing", kKey);
  const int said = s.original_max_positions;
  if (!beside && (family_default == 0 || s.type != "longrope")) return "";
  s.original_max_positions = family_default;
  io.optional(kKey, s.original_max_positions);
  if (!inside || said == s.original_max_positions) return "";
  return fmt::format("{} is {}, and {} {}", kKey, said, s.original_max_positions,
                     beside ? "next to the scaling, where transformers looks for it"
                            : "in this family where no key next to the scaling states it");
}

// The share of a head that is rotated, where that is not all of it: no plan depends on it, and nobody here trains it.
void mark_partial(double rotated, ModelSpec& m) {
  if (rotated == 1) return;
  const std::optional<std::string> why = m.rope_scaling ? rope_not_run(*m.rope_scaling) : std::nullopt;
  if (!m.rope_scaling) m.rope_scaling = RopeScaling{.type = "default", .factor = 1};
  // Its tables have a number for each pair that is rotated, fewer than a head has.
  if (m.rope_scaling->type == "longrope") m.rope_scaling = RopeScaling{.type = "longrope", .factor = 1};
  m.rope_scaling->not_run = fmt::format("{}partial_rotary_factor is {}, and heads are rotated whole here",
                                        why ? *why + "; " : "", rotated);
}

// What stands in `stated` beside the type, which is read already; false: no scaling. No plan depends on it, so that what is
// missing or not known is left to the runtime to refuse.
bool read_scaling(JsonReader& io, JsonReader& rope, const json& stated, const ModelFamily& family,
                  const ModelSpec& m, double rotated, RopeScaling& s) {
  std::vector<std::string> lacks;
  const auto needs = [&](std::string_view key, auto& out) {
    if (!rope.has(key)) lacks.push_back(fmt::format("{} is missing", key));
    rope.optional(key, out);
  };
  const bool known = std::ranges::count(kRopeTypes, s.type) > 0;
  for (const auto& [key, value] : stated.items())
    if (value.is_object()) lacks.push_back(fmt::format("{} scales by kind of layer", key));
  if (s.type == "default" && lacks.empty() && rope.has("factor"))
    lacks.emplace_back("rope_type is missing, and a factor is stated");
  if (s.type == "default" && lacks.empty()) return false;
  if (!known)
    s.factor = 1;  // of another kind its numbers mean something else
  else if (s.type != "longrope")
    needs("factor", s.factor);
  if (s.type == "llama3") {
    needs("low_freq_factor", s.low_freq_factor);
    needs("high_freq_factor", s.high_freq_factor);
  }
  if (known)
    if (auto wrong = read_original_positions(io, rope, family.original_positions_default, s); !wrong.empty())
      lacks.push_back(std::move(wrong));
  if (s.type == "longrope") {  // which states a number for each pair
    s.factor = static_cast<double>(m.max_positions) / std::max(1, s.original_max_positions);
    rope.optional("factor", s.factor);
    s.factor = std::max(1.0, s.factor);
    rope.optional("attention_factor", s.attention_factor);
    for (auto& [key, table] :
         {std::pair{"short_factor", &s.short_factor}, std::pair{"long_factor", &s.long_factor}}) {
      const std::size_t before = lacks.size();
      needs(key, *table);
      const auto half = static_cast<std::size_t>(std::max(0.0, m.head_dim * rotated) / 2);
      if (lacks.size() == before && table->size() != half)
        lacks.push_back(fmt::format("{} has {} numbers for {} pairs of a head", key, table->size(), half));
      if (!std::ranges::all_of(*table, [](double f) { return f > 0; }))
        lacks.push_back(fmt::format("{} has numbers that are not above 0", key));
    }
  }
  if (s.type == "yarn") {
    rope.optional("beta_fast", s.beta_fast);
    rope.optional("beta_slow", s.beta_slow);
    rope.optional("attention_factor", s.attention_factor);
    bool truncate = true;
    rope.optional("truncate", truncate);
    if (!truncate)
      lacks.emplace_back("truncate is false (bounds of the slowed pairs are whole numbers here)");
    for (const char* scale : {"mscale", "mscale_all_dim"})
      if (rope.has(scale)) lacks.push_back(fmt::format("{} is not known; attention_factor is", scale));
  }
  if (!lacks.empty()) {
    s = RopeScaling{.type = s.type, .factor = 1};
    s.not_run = fmt::format("{}: {}", s.type, fmt::join(lacks, ", "));
  }
  return true;
}

}  // namespace

void read_rope(JsonReader& io, const json& j, const ModelFamily& family, ModelSpec& m) {
  io.optional("rope_theta", m.rope_theta);
  const double stated = m.rope_theta;
  double rotated = 1;
  io.optional("partial_rotary_factor", rotated, between(0, 1));
  io.ignored("rope_scaling");
  io.ignored("rope_parameters");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!io.has(key)) continue;
    try {
      JsonReader rope(j.at(key));
      RopeScaling s;
      s.type = "default";
      s.original_max_positions = m.max_positions;
      rope.optional("rope_theta", m.rope_theta);
      if (io.has("rope_theta") && m.rope_theta != stated)
        rope.fail({"", "rope_theta", fmt::format("{}", m.rope_theta),
                   fmt::format("the rope_theta of {} that stands beside it", stated), "state it once"});
      rope.optional("partial_rotary_factor", rotated, between(0, 1));  // since v5
      rope.optional("type", s.type);
      rope.optional("rope_type", s.type);
      if (s.type == "su") s.type = "longrope";  // in Phi-3's first files
      const bool scaled = read_scaling(io, rope, j.at(key), family, m, rotated, s);
      rope.others_allowed();
      rope.finish();
      if (scaled) m.rope_scaling = s;
    } catch (const ConfigError& e) {
      for (Problem p : e.problems()) {
        p.key = p.key.empty() ? key : fmt::format("{}.{}", key, p.key);
        io.fail(std::move(p));
      }
    }
  }
  mark_partial(rotated, m);
}

}  // namespace sextant
