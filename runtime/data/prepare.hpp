// Texts to a data set: read, encode on all cores, write in order. Made in OUT.partial and renamed when it is whole; what a
// kill leaves there is gone on with by the same call, and gives the same bytes as one that was never interrupted.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/data/data_index.hpp"
#include "runtime/data/text_reader.hpp"
#include "runtime/data/tokenizer.hpp"

namespace sextant {

enum class BadText : std::uint8_t { stop, skip, replace };
inline constexpr std::array<std::string_view, 3> kBadTextNames = {"stop", "skip", "replace"};

struct PrepareProgress {
  std::int64_t done_bytes = 0, all_bytes = 0;  // of the inputs, on disk
  std::int64_t tokens = 0, documents = 0;      // of this call
};

struct PrepareOptions {
  std::filesystem::path out;
  std::string field = "text";  // of a JSONL line
  DocumentUnit unit = DocumentUnit::file;
  // A document that is no UTF-8, has NUL bytes, or is a bad JSONL line: end, leave it out, or put U+FFFD for what is no
  // UTF-8 (the others are left out then).
  BadText bad_text = BadText::stop;
  std::uint64_t seed = 1;
  double validation_fraction = 0.01;  // of the documents
  std::int64_t shard_tokens = 1LL << 28;
  std::int64_t flush_bytes = 16LL << 20;  // of text between two points from which it can go on
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const PrepareProgress&)> progress = {};  // after each block
};

struct PrepareResult {
  DataIndex index = {};
  std::int64_t text_bytes = 0;  // encoded, in all calls that made this set
  std::int64_t documents_left_out = 0, empty_inputs = 0;
  std::string first_left_out = {};        // why, and where
  bool resumed = false, stopped = false;  // stopped: by `stop`; nothing is at `out` yet
};

// Throws ConfigError (bad input, `out` is there already) or BackendError (disk).
PrepareResult prepare_data(const std::vector<TextInput>&, const Tokenizer&, const PrepareOptions&);

}  // namespace sextant
