#include "runtime/data/piece_encoder.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

class ByteModel {
 public:
  explicit ByteModel(BytePairModel m)
      : bytes_(std::move(m.bytes)), whole_(std::move(m.whole)), pairs_(m.merges) {}

  void encode(std::string_view piece, PieceScratch& scratch, std::vector<std::int32_t>& out) const {
    if (const auto known = scratch.cache.find(piece)) {
      out.insert(out.end(), known->begin(), known->end());
      return;
    }
    const std::size_t first = out.size();
    const auto whole = whole_.empty() ? whole_.end() : whole_.find(piece);
    if (whole != whole_.end()) {
      out.push_back(whole->second);
    } else {
      scratch.row.clear();
      for (const char b : piece) scratch.row.push_back(bytes_[static_cast<unsigned char>(b)]);
      pairs_.encode(scratch.row, out);
    }
    scratch.cache.keep(piece, std::span(out).subspan(first));
  }

 private:
  std::vector<std::int32_t> bytes_;
  TokenIds whole_;
  BytePairs pairs_;
};

class CharacterModel {
 public:
  explicit CharacterModel(CharacterPairModel m)
      : model_(std::move(m)), pairs_(model_.merges), parts_(parts_at_marks(model_)) {
    for (const auto& [spelled, id] : model_.ids) {
      if (spelled.empty() || valid_utf8_prefix(spelled) < spelled.size()) continue;
      const Utf8Character c = utf8_character(spelled, 0);
      if (c.bytes < spelled.size()) continue;
      if (c.code >= by_code_.size()) by_code_.resize(c.code + 1, kNone);
      by_code_[c.code] = id;
    }
  }

  void encode(std::string_view piece, PieceScratch& scratch, std::vector<std::int32_t>& out) const {
    if (const auto whole = model_.whole.empty() ? model_.whole.end() : model_.whole.find(piece);
        whole != model_.whole.end()) {
      out.push_back(whole->second);
      return;
    }
    if (!parts_) return encode_part(piece, scratch, out);
    std::size_t from = 0;
    const std::string_view mark = model_.mark;
    for (std::size_t at = piece.find(mark); at != std::string_view::npos;
         at = piece.find(mark, at + mark.size())) {
      if (at == from || piece.substr(from, at - from).ends_with(mark)) continue;  // marks in a row
      encode_part(piece.substr(from, at - from), scratch, out);
      from = at;
    }
    encode_part(piece.substr(from), scratch, out);
  }

 private:
  static constexpr std::int32_t kNone = -1;

  void encode_part(std::string_view part, PieceScratch& scratch, std::vector<std::int32_t>& out) const {
    if (const auto known = scratch.cache.find(part)) {
      out.insert(out.end(), known->begin(), known->end());
      return;
    }
    const std::size_t first = out.size();
    scratch.row.clear();
    spell(part, scratch.row);
    pairs_.encode(scratch.row, out);
    scratch.cache.keep(part, std::span(out).subspan(first));
  }

  // What is not known waits, and is one token with what follows when unknown ones are fused; bytes do not end that.
  void spell(std::string_view part, std::vector<std::int32_t>& row) const {
    bool waits = false;
    for (std::size_t at = 0; at < part.size();) {
      const Utf8Character c = utf8_character(part, at);
      const std::string_view letter = part.substr(at, c.bytes);
      const bool first = at == 0;
      at += c.bytes;
      std::string changed;
      const std::int32_t id = id_of(c.code, letter, first, at == part.size(), changed);
      if (id != kNone) {
        if (std::exchange(waits, false)) row.push_back(*model_.unknown);
        row.push_back(id);
      } else if (!spell_bytes(changed.empty() ? letter : std::string_view(changed), row) && model_.unknown) {
        if (waits && !model_.fuse_unknown) row.push_back(*model_.unknown);
        waits = true;
      }
    }
    if (waits) row.push_back(*model_.unknown);
  }

  std::int32_t id_of(char32_t code, std::string_view letter, bool first, bool last,
                     std::string& changed) const {
    if ((first || model_.prefix.empty()) && (!last || model_.suffix.empty()))
      return code < by_code_.size() ? by_code_[code] : kNone;
    if (!first) changed += model_.prefix;
    changed += letter;
    if (last) changed += model_.suffix;
    const auto found = model_.ids.find(changed);
    return found == model_.ids.end() ? kNone : found->second;
  }

  bool spell_bytes(std::string_view letter, std::vector<std::int32_t>& row) const {
    if (model_.bytes.empty()) return false;
    const auto token = [&](char b) -> const auto& { return model_.bytes[static_cast<unsigned char>(b)]; };
    if (!std::ranges::all_of(letter, [&](char b) { return token(b).has_value(); })) return false;
    for (const char b : letter) row.push_back(*token(b));
    return true;
  }

  CharacterPairModel model_;
  BytePairs pairs_;
  bool parts_;
  std::vector<std::int32_t> by_code_;  // tokens of single characters
};

}  // namespace

bool parts_at_marks(const CharacterPairModel& m) {
  if (m.mark.empty() || !m.prefix.empty() || !m.suffix.empty() || !m.ids.contains(m.mark)) return false;
  std::vector<bool> merged;
  for (const PairMerge& merge : m.merges) {
    const auto id = static_cast<std::size_t>(merge.result);
    if (merged.size() <= id) merged.resize(id + 1);
    merged[id] = true;
  }
  return std::ranges::all_of(m.ids, [&](const auto& entry) {
    const auto& [spelled, id] = entry;
    if (static_cast<std::size_t>(id) >= merged.size() || !merged[static_cast<std::size_t>(id)]) return true;
    std::size_t at = 0;
    while (spelled.compare(at, m.mark.size(), m.mark) == 0) at += m.mark.size();
    return spelled.find(m.mark, at) == std::string::npos;
  });
}

PieceEncoder byte_pair_encoder(BytePairModel model) {
  return
      [m = std::make_shared<const ByteModel>(std::move(model))](
          std::span<const std::string_view> pieces, PieceScratch& scratch, std::vector<std::int32_t>& out) {
        for (const std::string_view piece : pieces) m->encode(piece, scratch, out);
      };
}

PieceEncoder character_pair_encoder(CharacterPairModel model) {
  return
      [m = std::make_shared<const CharacterModel>(std::move(model))](
          std::span<const std::string_view> pieces, PieceScratch& scratch, std::vector<std::int32_t>& out) {
        for (const std::string_view piece : pieces) m->encode(piece, scratch, out);
      };
}

}  // namespace sextant
