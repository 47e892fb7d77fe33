#include "runtime/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/digest.hpp"
#include "core/base/file_io.hpp"
#include "core/base/mapped_range.hpp"
#include "core/base/safetensors.hpp"
#include "runtime/checkpoint/file_header.hpp"
#include "runtime/checkpoint/run_folder.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
// Room for 405B parameters in 126 layers on 16,384 ranks whose every layer is a bucket (ZeRO-3, or one parameter to a
// bucket of tp x pp ranks): a rank's slice of a bucket is up to three rectangles of some 210 bytes, so 16,384 x 128 x 3 x 210
// bytes = 1.23 GiB, and 64 MiB for plan, options and source of tokens.
constexpr std::uintmax_t kLargestManifest = std::uintmax_t{3} << 29;

// A file that is mapped, with its header checked, when it is first asked for.
struct OpenedFile {
  std::once_flag once;
  std::unique_ptr<SafetensorsFile> file;
  std::vector<std::array<std::atomic<bool>, 3>> checked;  // by extent and StateField
  explicit OpenedFile(std::size_t extents) : checked(extents) {}
};

struct Place {
  std::size_t file = 0, extent = 0;
};

}  // namespace

struct Checkpoint::Impl {
  fs::path run, path;
  std::int64_t step = 0;
  CheckpointUse use = CheckpointUse::go_on;
  bool candidate = false;  // asked only whether it is there
  Manifest manifest;
  std::vector<std::unique_ptr<OpenedFile>> files;
  std::map<std::string, std::vector<Place>, std::less<>> by_tensor;  // places by first row

  const StoredExtent& stored(Place p) const { return manifest.files[p.file].extents[p.extent]; }
  [[noreturn]] void damaged(const std::string& file, std::string key, std::string found,
                            std::string expected) const {
    require_there();
    throw ConfigError(
        Problem{(path / file).string(), std::move(key), std::move(found), std::move(expected), otherwise()});
  }
  [[noreturn]] void damaged(const ConfigError&) const;  // the same, and what to do about it
  std::string otherwise() const;                        // what to do when it is damaged
  void require_there() const;                           // one that its run has dropped is not damaged

  void load(const fs::path& of_run, std::int64_t of_step);
  void check_header(const StoredFile&) const;
  const SafetensorsFile& opened(std::size_t file) const;
  std::span<const std::byte> bytes(Place, StateField) const;
  void read(StateField, const ModelSlice&, ElementRange, std::span<std::byte> out) const;
};

namespace {

// A file that may be whole, and cannot be read here and now, is not damaged.
void require_readable(const fs::path& path) {
  if (::access(path.c_str(), R_OK) == 0 || errno == ENOENT || errno == ENOTDIR) return;
  throw ConfigError(Problem{path.string(), "", std::strerror(errno), "a file that can be read",
                            "is its storage there, and may you read it?"});
}

}  // namespace

// Offers the newest one before it that has all its files; what is in them is read when it is used.
std::string Checkpoint::Impl::otherwise() const {
  if (candidate) return "";
  auto all = committed_checkpoints(run);
  for (auto at = all.rbegin(); at != all.rend(); ++at) {
    if (at->step >= step) continue;
    Impl before;
    before.candidate = true;
    try {
      before.load(run, at->step);
    } catch (const ConfigError&) {
      continue;
    }
    if (use == CheckpointUse::read_weights)
      return fmt::format(
          "the checkpoint is damaged; the one of step {0} before it has all its files: --step {0}", at->step);
    return fmt::format(
        "the checkpoint is damaged; resume from the one of step {0}, which is complete: sextant run -o {1} "
        "--resume --resume-step {0}",
        at->step, run.string());
  }
  return "the checkpoint is damaged, and there is no complete one before it";
}

void Checkpoint::Impl::require_there() const {
  std::error_code none;
  if (!candidate && !manifest.files.empty() && !fs::exists(path, none) && !none)
    throw ConfigError(
        Problem{path.string(), "", "dropped while it was read", "a checkpoint that stays",
                "its run is still training and keeps the newest ones: give the same command again"});
}

void Checkpoint::Impl::damaged(const ConfigError& e) const {
  require_there();
  auto problems = e.problems();
  std::string& hint = problems.front().hint;
  hint = hint.empty() || candidate ? otherwise() : fmt::format("{}; {}", hint, otherwise());
  throw ConfigError(std::move(problems));
}

void Checkpoint::Impl::load(const fs::path& of_run, std::int64_t of_step) {
  run = of_run;
  step = of_step;
  path = checkpoint_path(run, step);
  const std::string file = (path / kManifestName).string();
  require_readable(file);
  try {
    manifest = parse_manifest(read_text_file(file, kLargestManifest), file);
  } catch (const ConfigError& e) {
    damaged(e);
  }
  if (manifest.clock.step != step)
    damaged(kManifestName, "step", std::to_string(manifest.clock.step),
            fmt::format("{}, as its folder is named", step));
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const StoredFile& stored_file = manifest.files[f];
    std::error_code error;
    const fs::file_status status = fs::status(path / stored_file.name, error);
    if (fs::exists(status) && !fs::is_regular_file(status))
      damaged(stored_file.name, "", "no regular file", "the file that the manifest names");
    const auto size = fs::file_size(path / stored_file.name, error);
    if (error) damaged(stored_file.name, "", error.message(), "the file that the manifest names");
    if (static_cast<std::int64_t>(size) != stored_file.bytes)
      damaged(stored_file.name, "size", fmt::format("{} bytes", size),
              fmt::format("{} bytes", stored_file.bytes));
    files.push_back(std::make_unique<OpenedFile>(stored_file.extents.size()));
    for (std::size_t e = 0; e < stored_file.extents.size(); ++e)
      by_tensor[stored_file.extents[e].tensor].push_back({f, e});
  }
  for (auto& [_, places] : by_tensor)
    std::ranges::sort(places, {}, [&](Place p) { return stored(p).extent.row; });
}

// Before anyone parses it: a flipped bit in a header has no business in a parser's message.
void Checkpoint::Impl::check_header(const StoredFile& file) const {
  require_readable(path / file.name);
  const std::string header = file_header(path / file.name);
  if (const std::string found = digest(header); header.empty() || found != file.header)
    damaged(file.name, "header", header.empty() ? "unreadable" : fmt::format("digest {}", found),
            fmt::format("digest {}", file.header));
}

const SafetensorsFile& Checkpoint::Impl::opened(std::size_t f) const {
  OpenedFile& entry = *files[f];
  std::call_once(entry.once, [&] {
    check_header(manifest.files[f]);
    entry.file = std::make_unique<SafetensorsFile>(path / manifest.files[f].name);
  });
  return *entry.file;
}

std::span<const std::byte> Checkpoint::Impl::bytes(Place place, StateField field) const {
  const SafetensorsFile& file = opened(place.file);
  const StoredExtent& e = stored(place);
  const std::array<std::int64_t, 2> shape = {e.extent.rows, e.extent.cols};
  const std::string name = stored_name(e, field);
  std::span<const std::byte> data;
  try {
    data = file.bytes(file.require(name, stored_type(manifest.dtype), shape));
  } catch (const ConfigError& error) {
    damaged(error);
  }
  const auto which = static_cast<std::size_t>(field);
  std::atomic<bool>& checked = files[place.file]->checked[place.extent][which];
  if (!checked) {
    if (const std::string found = digest(data); found != e.digests[which])
      damaged(manifest.files[place.file].name, name, fmt::format("digest {}", found),
              fmt::format("digest {}", e.digests[which]));
    checked = true;
  }
  return data;
}

void Checkpoint::Impl::read(StateField field, const ModelSlice& slice, ElementRange range,
                            std::span<std::byte> out) const {
  const auto element = static_cast<std::int64_t>(size_bytes(manifest.dtype));
  SEXTANT_CHECK(static_cast<std::int64_t>(out.size()) == (range.end - range.begin) * element,
                "room for the elements asked for");
  const auto found = by_tensor.find(slice.name);
  if (found == by_tensor.end())
    throw ConfigError(Problem{(path / kManifestName).string(), slice.name, "nothing",
                              fmt::format("a tensor of {} x {}", slice.model_rows, slice.model_cols),
                              "is it a checkpoint of another model?"});
  for (const SliceExtent& wanted : extents_of(slice, range)) {
    const Extent& w = wanted.extent;
    for (const Place place : found->second) {
      const Extent& there = stored(place).extent;
      if (there.row >= w.row + w.rows) break;
      const Extent both = intersection(w, there);
      if (both.elements() == 0) continue;
      const auto stored_bytes = bytes(place, field);
      const std::byte* from = stored_bytes.data();
      for (std::int64_t r = both.row; r < both.row + both.rows; ++r) {
        const std::int64_t source = (r - there.row) * there.cols + both.col - there.col;
        const std::int64_t target = wanted.begin - range.begin + (r - w.row) * w.cols + both.col - w.col;
        std::memcpy(out.data() + target * element, from + source * element,
                    static_cast<std::size_t>(both.cols * element));
      }
      let_go(stored_bytes);
    }
  }
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
const Manifest& Checkpoint::manifest() const { return impl_->manifest; }
const fs::path& Checkpoint::path() const { return impl_->path; }

Checkpoint Checkpoint::open(const fs::path& run, std::optional<std::int64_t> step, CheckpointUse use) {
  const auto all = committed_checkpoints(run);
  if (all.empty())
    throw ConfigError(Problem{run.string(), "", "no checkpoint", "the folder of a run: sextant run -o",
                              fs::exists(run) ? "" : "there is no such folder"});
  const auto which = step ? std::ranges::find(all, *step, &CommittedCheckpoint::step) : std::prev(all.end());
  if (which == all.end()) {
    std::string steps;
    for (const auto& c : all) steps += fmt::format("{}{}", steps.empty() ? "" : ", ", c.step);
    throw ConfigError(Problem{run.string(), "", fmt::format("no checkpoint of step {}", *step),
                              fmt::format("one of {}", steps), ""});
  }
  auto impl = std::make_unique<Impl>();
  impl->use = use;
  impl->load(run, which->step);
  return Checkpoint(std::move(impl));
}

std::optional<Checkpoint> Checkpoint::open_newest(const fs::path& run, CheckpointUse use) {
  if (committed_checkpoints(run).empty()) return {};
  return open(run, {}, use);
}

void Checkpoint::read(StateField field, const ModelSlice& slice, ElementRange range,
                      std::span<std::byte> out) const {
  impl_->read(field, slice, range, out);
}

WeightSource Checkpoint::weights() const {
  return [impl = impl_.get()](const ModelSlice& slice, std::span<double> values) {
    const ElementRange all{0, static_cast<std::int64_t>(values.size())};
    if (impl->manifest.dtype == Dtype::fp64)
      return impl->read(StateField::master, slice, all, std::as_writable_bytes(values));
    std::vector<float> stored(values.size());
    impl->read(StateField::master, slice, all, std::as_writable_bytes(std::span(stored)));
    std::ranges::copy(stored, values.begin());
  };
}

void Checkpoint::verify() const {
  for (std::size_t f = 0; f < impl_->files.size(); ++f) {
    const StoredFile& file = impl_->manifest.files[f];
    impl_->opened(f);
    for (std::size_t e = 0; e < file.extents.size(); ++e)
      for (const StateField field : kStateFields) let_go(impl_->bytes({f, e}, field));
  }
}

std::int64_t Checkpoint::bytes_checked() const {
  std::int64_t bytes = 0;
  for (std::size_t f = 0; f < impl_->files.size(); ++f)
    for (std::size_t e = 0; e < impl_->files[f]->checked.size(); ++e)
      for (const auto& checked : impl_->files[f]->checked[e])
        if (checked) bytes += impl_->stored({f, e}).extent.elements() * size_bytes(impl_->manifest.dtype);
  return bytes;
}

void Checkpoint::require_model(const ModelSpec& model, const std::string& asked) const {
  constexpr std::array<std::string_view, 4> kFirst = {"hidden", "n_layers", "n_heads", "vocab_size"};
  constexpr std::size_t kTold = 3;  // beside the first
  nlohmann::json mine = impl_->manifest.plan.model, other = model;
  mine.erase("name");
  other.erase("name");
  std::vector<std::string> keys(kFirst.begin(), kFirst.end());
  for (const nlohmann::json* fields : {&mine, &other})
    for (const auto& [key, _] : fields->items())
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  const auto value = [](const nlohmann::json& of, const std::string& key) {
    return of.contains(key) ? of.at(key).dump() : "nothing";
  };
  std::erase_if(keys, [&](const std::string& key) { return value(mine, key) == value(other, key); });
  if (keys.empty()) return;
  std::string why = fmt::format("{} is a checkpoint of another model", impl_->path.string());
  for (std::size_t i = 1; i < std::min(keys.size(), kTold + 1); ++i)
    why += fmt::format("{} {} {} where it has {}", i == 1 ? ":" : ",", keys[i], value(other, keys[i]),
                       value(mine, keys[i]));
  if (keys.size() > kTold + 1) why += fmt::format(", and {} more fields", keys.size() - kTold - 1);
  throw ConfigError(
      Problem{asked, "model." + keys[0], value(other, keys[0]), value(mine, keys[0]), std::move(why)});
}

}  // namespace sextant
