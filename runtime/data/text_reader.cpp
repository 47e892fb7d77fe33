#include "runtime/data/text_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <glob.h>
#include <zlib.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReadBytes = 1U << 20;      // bytes of text
constexpr std::size_t kLongestPart = 256U << 20;  // of a line, a paragraph, or a text that cannot be divided

std::string stem_of(const fs::path& path) {
  return path.extension() == ".gz" ? path.stem().string() : path.filename().string();
}
bool named(const fs::path& path, std::initializer_list<const char*> extensions) {
  const std::string extension = fs::path(stem_of(path)).extension().string();
  return std::ranges::any_of(extensions, [&](const char* e) { return extension == e; });
}

[[noreturn]] void refuse_text(const std::string& file, std::string found, std::string expected,
                              std::string hint = "") {
  throw ConfigError(Problem{file, "", std::move(found), std::move(expected), std::move(hint)});
}

TextInput describe(const fs::path& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (error && status.type() != fs::file_type::not_found)
    refuse_text(path.string(), error.message(), "a text file");
  if (!fs::exists(status)) refuse_text(path.string(), "no such file", "a text file");
  if (!fs::is_regular_file(status)) refuse_text(path.string(), "no regular file", "a text file");
  TextInput input{.path = path, .jsonl = named(path, {".jsonl", ".ndjson"})};
  input.bytes = static_cast<std::int64_t>(fs::file_size(path, error));
  const auto modified = fs::last_write_time(path, error);
  if (error) refuse_text(path.string(), error.message(), "a file that can be read");
  const auto since_epoch = std::chrono::file_clock::to_sys(modified).time_since_epoch();
  input.modified_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count();
  return input;
}

std::vector<fs::path> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<fs::path> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  return paths;
}

// `around`: the folders that this one is in. A link to one of them has nothing that is not there already.
void add_texts(const fs::path& folder, std::vector<fs::path>& around, std::vector<fs::path>& paths) {
  std::error_code error, none;
  const fs::path real = fs::canonical(folder, error);
  if (std::ranges::find(around, real) != around.end()) return;
  around.push_back(real);
  fs::directory_iterator at(folder, error);
  for (const fs::directory_iterator end; !error && at != end; at.increment(error)) {
    const fs::path& path = at->path();
    if (at->is_directory(none))
      add_texts(path, around, paths);
    else if (named(path, {".txt", ".text", ".md", ".jsonl", ".ndjson"}) &&
             (at->is_regular_file(none) || !at->exists(none)))
      paths.push_back(path);  // a link to nothing is a text that is missed
  }
  if (error) refuse_text(folder.string(), error.message(), "a folder that can be read");
  around.pop_back();
}

std::vector<fs::path> texts_in(const fs::path& folder) {
  std::vector<fs::path> paths, around;
  add_texts(folder, around, paths);
  std::ranges::sort(paths);
  if (paths.empty())
    refuse_text(folder.string(), "a folder without texts",
                "files named *.txt, *.text, *.md, *.jsonl or *.ndjson, also with .gz",
                "name the files themselves to take others");
  return paths;
}

// Behind the last place where a block may end; 0 when there is none.
TextCut find_cut(std::string_view text, bool jsonl, DocumentUnit unit, const Tokenizer& tokenizer) {
  if (jsonl || unit == DocumentUnit::line) {
    const std::size_t at = text.rfind('\n');
    return at == text.npos ? TextCut{} : TextCut{at + 1, 0};
  }
  if (unit == DocumentUnit::paragraph) {
    // Not at the very end: more line feeds may follow.
    for (const std::string_view gap : {"\n\n", "\n\r\n"})
      if (const std::size_t at = text.rfind(gap, text.size() - 3); text.size() > 3 && at != text.npos)
        return TextCut{at + gap.size(), 0};
    return {};
  }
  return tokenizer.last_cut(text).value_or(TextCut{});
}

bool blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

std::string_view without_line_end(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

}  // namespace

std::vector<TextInput> find_texts(const std::vector<std::string>& arguments) {
  std::vector<TextInput> inputs;
  for (const std::string& argument : arguments) {
    std::vector<fs::path> paths = {argument};
    std::error_code error;  // describe() says what is wrong
    if (fs::is_directory(argument, error)) {
      paths = texts_in(argument);
    } else if (!fs::exists(argument, error) && argument.find_first_of("*?[") != argument.npos) {
      paths = matches(argument);
      if (paths.empty()) refuse_text(argument, "no file", "a pattern that files match");
    }
    std::set<fs::path> met;  // a link within a folder is no second file
    for (const fs::path& path : paths)
      if (met.insert(fs::weakly_canonical(path, error)).second) inputs.push_back(describe(path));
  }
  std::vector<fs::path> all;
  for (const TextInput& i : inputs) all.push_back(fs::weakly_canonical(i.path));
  std::ranges::sort(all);
  if (const auto twice = std::ranges::adjacent_find(all); twice != all.end())
    refuse_text(twice->string(), "named twice", "every file once");
  return inputs;
}

// gzread ends without a word at what is no gzip member behind others: half of a download, or a flipped bit. Padding with
// zeros is lawful (gzip(1)). Reads all of the file once more, without its text.
void check_members(const fs::path& path, const std::string& name) {
  constexpr std::size_t kPiece = 1U << 18;
  std::ifstream in(path, std::ios::binary);
  std::vector<char> packed(kPiece), text(kPiece);
  const auto unread = [&] {
    refuse_text(name, fmt::format("cannot be read: {}", std::strerror(errno)), "a gzip file");
  };
  if (!in) unread();
  z_stream z{};
  if (::inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) return;
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&z, ::inflateEnd);
  bool between = false;  // behind a member
  for (std::int64_t read = 0; in.read(packed.data(), kPiece), in.gcount() > 0; read += in.gcount()) {
    z.next_in = reinterpret_cast<Bytef*>(packed.data());
    z.avail_in = static_cast<uInt>(in.gcount());
    while (z.avail_in > 0) {
      if (between && *z.next_in == 0) {
        ++z.next_in;
        --z.avail_in;
        continue;
      }
      between = false;
      z.next_out = reinterpret_cast<Bytef*>(text.data());
      z.avail_out = kPiece;
      const auto at = read + (in.gcount() - static_cast<std::int64_t>(z.avail_in));
      const int code = ::inflate(&z, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        between = true;
        (void)::inflateReset(&z);
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        refuse_text(name, fmt::format("no gzip data at or behind byte {}", at), "a gzip file, whole",
                    "was it downloaded whole? gzip -t checks it");
      }
    }
  }
  if (in.bad()) unread();
}

// zlib reads plain files as they are.
struct TextReader::File {
  gzFile gz;
  fs::path path;
  std::string name;
  bool checked = false;
  std::int64_t size = 0;  // bytes when it was opened
  explicit File(const fs::path& of) : gz(::gzopen(of.c_str(), "rbe")), path(of), name(of.string()) {
    if (!gz) refuse_text(name, std::strerror(errno), "a file that can be read");
    ::gzbuffer(gz, 1U << 18);
    if (std::error_code none; fs::is_regular_file(path, none))
      size = std::max<std::int64_t>(0, static_cast<std::int64_t>(fs::file_size(path, none)));
    if (char first = 0; path.extension() == ".gz" && ::gzdirect(gz) && ::gzread(gz, &first, 1) == 1) {
      ::gzclose(gz);
      refuse_text(name, "no gzip data", "a gzip file, by its name",
                  "was it downloaded whole, and not an error page?");
    }
  }
  ~File() { ::gzclose(gz); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  std::size_t read(char* to, std::size_t most) {
    const int n = ::gzread(gz, to, static_cast<unsigned>(most));
    if (n < 0) failed();
    // A gzip file that ends early is read as far as it goes, and said only here.
    if (int code = Z_OK; n == 0 && (::gzerror(gz, &code), code != Z_OK && code != Z_STREAM_END)) failed();
    if (n == 0 && !std::exchange(checked, true)) check_end();
    return static_cast<std::size_t>(n);
  }
  void check_end() {
    if (!::gzdirect(gz)) return check_members(path, name);
    if (const auto at = static_cast<std::int64_t>(::gztell(gz)); at < size)
      refuse_text(name, fmt::format("{} bytes", at), fmt::format("the {} bytes that it had", size),
                  "it became shorter while it was read");
  }
  [[noreturn]] void failed() {
    int code = 0;
    std::string why = ::gzerror(gz, &code);
    if (why.starts_with(name + ": ")) why.erase(0, name.size() + 2);  // it is said already
    refuse_text(name, code == Z_ERRNO ? std::strerror(errno) : why, "a file that can be read to its end");
  }
};

TextReader::TextReader(const std::vector<TextInput>& inputs, DocumentUnit unit, const Tokenizer& tokenizer,
                       TextPosition from, const std::atomic<bool>* stop)
    : inputs_(inputs), unit_(unit), tokenizer_(tokenizer), at_(from), stop_(stop) {
  for (std::size_t i = 0; i < std::min(at_.input, inputs.size()); ++i) bytes_before_ += inputs[i].bytes;
}

TextReader::~TextReader() = default;

bool TextReader::open() {
  if (file_) return true;
  if (at_.input >= inputs_.size()) return false;
  file_ = std::make_unique<File>(inputs_[at_.input].path);
  if (at_.offset > 0) {
    if (::gzseek(file_->gz, at_.offset, SEEK_SET) != at_.offset) file_->failed();
    return true;
  }
  fill(kReadBytes);  // a byte order mark is no text
  if (buffer_.starts_with("\xef\xbb\xbf")) {
    buffer_.erase(0, 3);
    at_.offset = 3;
  }
  return true;
}

// Leaves the buffer as it is at the end of the file.
void TextReader::fill(std::size_t bytes) {
  const std::size_t before = buffer_.size();
  buffer_.resize(before + bytes);
  std::size_t got = 0;
  while (got < bytes) {
    const std::size_t n = file_->read(buffer_.data() + before + got, std::min(kReadBytes, bytes - got));
    if (n == 0) break;
    got += n;
  }
  buffer_.resize(before + got);
}

std::optional<TextBlock> TextReader::next() {
  while (open()) {
    const TextInput& input = inputs_[at_.input];
    if (buffer_.size() < kReadBytes) fill(kReadBytes);
    TextCut cut;
    bool end = false;
    for (;;) {
      if (stop_ && stop_->load()) return {};
      const std::size_t before = buffer_.size();
      if (before >= kReadBytes) cut = find_cut(buffer_, input.jsonl, unit_, tokenizer_);
      if (cut.end > 0) break;
      if (before > kLongestPart)
        refuse_text(fmt::format("{}:{}", input.path.string(), at_.line),
                    fmt::format("{} MiB without an end", before >> 20),
                    input.jsonl || unit_ != DocumentUnit::file
                        ? "shorter lines"
                        : "a text with lines or words at which it can be divided");
      // As much again, so that what has no end is not looked through again for each block of it.
      fill(std::max(kReadBytes, std::min(before, kLongestPart + kReadBytes - before)));
      if (buffer_.size() == before) {
        end = true;
        cut = {before, 0};
        break;
      }
    }
    const bool whole_file = !input.jsonl && unit_ == DocumentUnit::file;
    TextBlock block;
    block.text = buffer_.substr(0, cut.end);
    block.input = &input;
    block.first_line = at_.line;
    block.continues = at_.in_document;
    block.open = whole_file && !end;
    const std::size_t taken = cut.end + cut.skip;
    at_.line += std::count(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(taken), '\n');
    at_.offset += static_cast<std::int64_t>(taken);
    at_.in_document = block.open;
    buffer_.erase(0, taken);
    block.done_bytes =
        bytes_before_ + std::min(input.bytes, static_cast<std::int64_t>(::gzoffset(file_->gz)));
    if (end) {
      bytes_before_ += input.bytes;
      block.done_bytes = bytes_before_;
      at_ = {.input = at_.input + 1};
      file_.reset();
    }
    block.next = at_;
    return block;
  }
  return {};
}

std::vector<DocumentSlice> documents_of(const TextBlock& block, DocumentUnit unit) {
  std::vector<DocumentSlice> slices;
  std::string_view text = block.text;
  std::int64_t line = block.first_line;
  if (!block.input->jsonl && unit == DocumentUnit::file) {
    if (!text.empty() || block.continues) slices.push_back({text, line, block.continues, block.open});
    return slices;
  }
  const bool lines = block.input->jsonl || unit == DocumentUnit::line;
  const char* begin = nullptr;  // of the paragraph at hand
  std::int64_t begin_line = line;
  const auto close = [&](const char* end) {
    if (begin)
      slices.push_back({without_line_end({begin, static_cast<std::size_t>(end - begin)}), begin_line});
    begin = nullptr;
  };
  for (; !text.empty(); ++line) {
    const std::string_view one = text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
    if (blank(without_line_end(one))) {
      close(one.data());
    } else if (!begin) {
      begin = one.data();
      begin_line = line;
    }
    text.remove_prefix(one.size());
    if (lines) close(text.data());
  }
  close(text.data());
  return slices;
}

}  // namespace sextant
