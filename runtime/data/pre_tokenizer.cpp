#include "runtime/data/pre_tokenizer.hpp"

#include <utility>

#include "runtime/data/byte_alphabet.hpp"
#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

// Parts of a piece, those that match and those between, to pieces.
class PartsToPieces {
 public:
  PartsToPieces(std::string_view piece, SplitBehavior behavior, std::vector<std::string_view>& out)
      : piece_(piece), behavior_(behavior), out_(out) {}

  // In order, without gaps; one may be empty.
  void add(std::size_t begin, std::size_t end, bool match) {
    const bool before = std::exchange(was_match_, match);
    bool joins = false;  // the piece before
    switch (behavior_) {
      case SplitBehavior::removed:
        if (match) return;
        break;
      case SplitBehavior::isolated:
        break;
      case SplitBehavior::merged_with_previous:
        joins = match && !before;
        break;
      case SplitBehavior::
          merged_with_next:  // a match waits for what is behind it; of several in a row the last does
        joins = before && !match;
        break;
      case SplitBehavior::contiguous:
        joins = match == before;
        break;
    }
    if (joins && open_) {
      end_ = end;
      return;
    }
    flush();
    begin_ = begin;
    end_ = end;
    open_ = true;
  }
  void flush() {
    if (open_ && end_ > begin_) out_.push_back(piece_.substr(begin_, end_ - begin_));
    open_ = false;
  }

 private:
  std::string_view piece_;
  SplitBehavior behavior_;
  std::vector<std::string_view>& out_;
  std::size_t begin_ = 0, end_ = 0;
  bool open_ = false, was_match_ = false;
};

template <class Change>
void change_each(TextPieces& pieces, const Change& change) {
  for (std::string_view& piece : pieces.now) {
    std::string changed;
    if (!change(piece, piece.data() == pieces.start, changed)) continue;
    pieces.made.push_back(std::move(changed));
    if (piece.data() == pieces.start) pieces.start = pieces.made.back().data();
    piece = pieces.made.back();
  }
}

template <class Cut>
void cut_each(TextPieces& pieces, const Cut& cut) {
  pieces.next.clear();
  for (const std::string_view piece : pieces.now) cut(piece);
  std::swap(pieces.now, pieces.next);
}

}  // namespace

PreTokenizerStep split_step(SplitPattern pattern, SplitBehavior behavior, bool inverted) {
  if (behavior == SplitBehavior::isolated)  // in which matches and what lies between are alike
    return [pattern = std::move(pattern)](TextPieces& pieces) {
      cut_each(pieces, [&](std::string_view piece) { pattern.split(piece, pieces.next); });
    };
  return [pattern = std::move(pattern), behavior, inverted](TextPieces& pieces) {
    cut_each(pieces, [&](std::string_view piece) {
      pieces.matches.clear();
      pattern.find_all(piece, pieces.matches);
      PartsToPieces parts(piece, behavior, pieces.next);
      std::size_t done = 0;
      for (const TextMatch& m : pieces.matches) {
        if (m.begin != done) parts.add(done, m.begin, inverted);
        parts.add(m.begin, m.end, !inverted);
        done = m.end;
      }
      if (done != piece.size()) parts.add(done, piece.size(), inverted);
      parts.flush();
    });
  };
}

PreTokenizerStep split_step(std::function<bool(char32_t)> characters, SplitBehavior behavior) {
  return [characters = std::move(characters), behavior](TextPieces& pieces) {
    cut_each(pieces, [&](std::string_view piece) {
      PartsToPieces parts(piece, behavior, pieces.next);
      std::size_t done = 0;
      for (std::size_t at = 0; at < piece.size();) {
        const Utf8Character c = utf8_character(piece, at);
        const std::size_t end = at + c.bytes;
        if (characters(c.code)) {
          if (done < at) parts.add(done, at, false);
          parts.add(at, end, true);
          done = end;
        }
        at = end;
      }
      if (done < piece.size()) parts.add(done, piece.size(), false);
      parts.flush();
    });
  };
}

PreTokenizerStep metaspace_step(std::string mark, MetaspacePrefix prefix, bool split) {
  return [mark = std::move(mark), prefix, split](TextPieces& pieces) {
    change_each(pieces, [&](std::string_view piece, bool first, std::string& out) {
      const bool marked = piece.starts_with(mark) || piece.starts_with(' ');
      if (!marked && (prefix == MetaspacePrefix::always || (prefix == MetaspacePrefix::first && first)))
        out = mark;
      std::size_t space = piece.find(' ');
      if (out.empty() && space == std::string_view::npos) return false;
      out.reserve(piece.size() + piece.size() / 4 + mark.size());
      std::size_t done = 0;
      for (; space != std::string_view::npos; space = piece.find(' ', done)) {
        (out += piece.substr(done, space - done)) += mark;
        done = space + 1;
      }
      out += piece.substr(done);
      return true;
    });
    if (!split) return;
    cut_each(pieces, [&](std::string_view piece) {
      std::size_t done = 0;
      for (std::size_t at = piece.find(mark, 1); at != std::string_view::npos;
           at = piece.find(mark, at + 1)) {
        if (at == done) continue;
        pieces.next.push_back(piece.substr(done, at - done));
        done = at;
      }
      pieces.next.push_back(piece.substr(done));
    });
  };
}

PreTokenizerStep prefix_space_step() {
  return [](TextPieces& pieces) {
    change_each(pieces, [](std::string_view piece, bool, std::string& out) {
      if (piece.starts_with(' ')) return false;
      (out = " ") += piece;
      return true;
    });
  };
}

PreTokenizerStep byte_letters_pieces_step() {
  return [](TextPieces& pieces) {
    change_each(pieces, [](std::string_view piece, bool, std::string& out) {
      out = to_byte_letters(piece);
      return true;
    });
  };
}

void PreTokenizer::apply(std::string_view text, bool at_start, TextPieces& pieces) const {
  pieces.now.clear();
  pieces.made.clear();
  pieces.start = at_start ? text.data() : nullptr;
  if (!text.empty()) pieces.now.push_back(text);
  for (const PreTokenizerStep& step : steps_) step(pieces);
}

}  // namespace sextant
