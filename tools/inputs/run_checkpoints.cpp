#include "tools/inputs/run_checkpoints.hpp"

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/file_io.hpp"
#include "core/base/shallow_json.hpp"
#include "tools/inputs/options.hpp"
#include "tools/inputs/run_options.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
constexpr const char* kSteps = "steps.jsonl";
constexpr std::uintmax_t kLargestLog = std::uintmax_t{1} << 34;

// What a log has of the steps before `step`.
struct LogBefore {
  std::string lines;       // each step once; what a killed run wrote beyond them, or half, is left out
  std::string missing;     // the steps of which there is none: "0 to 41, 57"; empty: none
  std::int64_t steps = 0;  // behind the last of the lines
};

LogBefore log_before(const fs::path& file, std::int64_t step) {
  constexpr int kNamed = 5;
  LogBefore log;
  std::int64_t next = 0;
  int gaps = 0;
  const auto reached = [&](std::int64_t found) {
    if (found > next && ++gaps <= kNamed)
      log.missing +=
          fmt::format("{}{}", gaps > 1 ? ", " : "",
                      found - next > 1 ? fmt::format("{} to {}", next, found - 1) : fmt::format("{}", next));
    next = found + 1;
  };
  const std::string text = fs::exists(file) ? read_text_file(file, kLargestLog) : "";
  for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const auto line = json_or_discarded(std::string_view(text).substr(at, end - at));
    const auto number = line.is_object() ? line.find("step") : line.end();
    if (!line.is_object() || number == line.end() || !number->is_number_integer()) continue;
    const auto found = number->get<std::int64_t>();
    const bool evaluation = line.contains("validation_loss") && found + 1 == next;  // stands behind its step
    if ((found < next && !evaluation) || found >= step) continue;
    log.lines.append(text, at, end + 1 - at);
    if (!evaluation) reached(found);
  }
  log.steps = next;
  reached(step);
  if (gaps > kNamed) log.missing += fmt::format(" and {} more gaps", gaps - kNamed);
  return log;
}

// What a run did that left no checkpoint, or a file of which not every line can be read, is not lost. The new name; empty
// when there was nothing.
fs::path keep_steps_aside(const fs::path& steps) {
  std::error_code error;
  if (!fs::exists(steps, error) || fs::file_size(steps, error) == 0) return {};
  fs::path aside = steps.parent_path() / "aside-steps.jsonl";
  for (int n = 2; fs::exists(aside); ++n)
    aside = steps.parent_path() / fmt::format("aside-steps-{}.jsonl", n);
  fs::rename(steps, aside);
  return aside;
}

// What a run writes in its folder is written in the middle of things, and a pipe or device in its place would be waited for.
void require_plain_files(const fs::path& folder, bool follow_links) {
  for (const char* name : {"plan.json", kRunOptionsFile, kSteps, "timeline.json"}) {
    std::error_code error;
    // A link in a folder of somebody else's would lead what is written to any file of this user's.
    const fs::file_status found = fs::symlink_status(folder / name, error);
    if (fs::exists(found) && !fs::is_regular_file(found))
      throw ConfigError(
          Problem{(folder / name).string(), "", "no regular file", "one, or nothing yet",
                  "the run writes this file: remove what has its name, or name another folder"});
  }
  std::error_code error;
  const fs::path checkpoints = folder / "checkpoints";
  if (!follow_links && fs::is_symlink(fs::symlink_status(checkpoints, error)))
    throw ConfigError(Problem{checkpoints.string(), "",
                              "a link to " + fs::read_symlink(checkpoints, error).string(), "a folder",
                              "a run writes and removes checkpoints in there: --follow-links, if the link is "
                              "yours, or -o with a folder on that storage"});
}

// It can appear while the run lasts, and not before. The folder of the run is made in time.
void require_stop_file(const fs::path& file, const fs::path& run) {
  if (file.empty()) return;
  const auto refuse = [&](const char* expected, const char* hint) {
    throw ConfigError(Problem{"--stop-file", "", file.string(), expected, hint});
  };
  std::error_code error;
  if (fs::exists(file, error))
    refuse("a file that is not there yet", "it would end the run at once: remove it");
  const auto plain = [](const fs::path& path) { return (fs::absolute(path) / "").lexically_normal(); };
  const fs::path folder = fs::absolute(file).parent_path();
  if (!fs::is_directory(folder, error) && (run.empty() || plain(folder) != plain(run)))
    refuse("a file in a folder that is there", "no such folder: nobody could make the file");
}

}  // namespace

void add_checkpoint_options(CLI::App& app, CheckpointFlags& o) {
  add_number(app,
             {.flag = "--save-every",
              .metavar = "N",
              .text = "steps from checkpoint to checkpoint; 0 = only where the run ends",
              .min = 0,
              .max = 1e9},
             o.save_every);
  add_number(
      app, {.flag = "--keep-last", .metavar = "N", .text = "checkpoints that are kept", .min = 1, .max = 1e6},
      o.keep_last);
  add_number(app,
             {.flag = "--keep-every",
              .metavar = "N",
              .text = "of every N steps one more checkpoint is kept; 0 = none",
              .min = 0,
              .max = 1e9},
             o.keep_every);
  add_flag(app, {.flag = "--no-save", .metavar = "", .text = "write no checkpoint into -o"}, o.no_save);
  add_flag(app,
           {.flag = "--follow-links",
            .metavar = "",
            .text = "checkpoints of -o may be a link to another storage, which you have made"},
           o.follow_links);
  add_flag(app,
           {.flag = "--resume",
            .metavar = "",
            .text = "resume from the newest checkpoint in -o, under its own plan or the given one; begins "
                    "where the folder is there and has none yet"},
           o.resume);
  add_number(app,
             {.flag = "--resume-step",
              .metavar = "N",
              .text = "with --resume: from this checkpoint; later ones are set aside; -1 = the newest",
              .min = -1,
              .max = 1e9},
             o.resume_step);
  add_number(app,
             {.flag = "--time-limit-s",
              .metavar = "S",
              .text = "seconds after which the run saves and ends; 0 = none",
              .unit = "s",
              .min = 0,
              .max = 1e9},
             o.time_limit_s);
  add_text(
      app,
      {.flag = "--stop-file", .metavar = "FILE", .text = "the run saves and ends when this file appears"},
      o.stop_file);
}

RunFolder::RunFolder(const std::string& folder, const CheckpointFlags& flags)
    : folder_(folder), flags_(flags) {
  require_stop_file(flags.stop_file, folder_);
  if (folder.empty()) {
    if (flags.resume || flags.resume_step >= 0 || flags.save_every > 0 || flags.keep_every > 0)
      throw UsageError("checkpoints are in the folder of the run: add -o DIR");
    return;
  }
  if (flags.resume_step >= 0 && !flags.resume) throw UsageError("--resume-step goes with --resume");
  std::error_code error;
  if (fs::exists(folder_, error) && !fs::is_directory(folder_, error))
    throw ConfigError(
        Problem{"-o", "", folder, "a folder that can be made and written", "a file has this name"});
  if (flags.resume && !fs::exists(folder_, error) && !error)
    throw ConfigError(
        Problem{"-o", "", folder, "the folder of a run to resume",
                "there is no such folder: without --resume a run is begun there; a command that is "
                "to begin a run and, given again, to resume it, needs the folder: mkdir"});
  require_plain_files(folder_, flags.follow_links);
  const bool used = fs::exists(folder_ / kSteps, error) || !committed_checkpoints(folder_).empty();
  if (used && !flags.resume)
    throw ConfigError(Problem{"-o", "", folder, "a folder without a run in it",
                              "there is one: --resume continues it; or name another folder"});
  if (!flags.resume) return;
  if (flags.resume_step >= 0)
    checkpoint_.emplace(Checkpoint::open(folder_, flags.resume_step));
  else
    checkpoint_ = Checkpoint::open_newest(folder_);
}

void RunFolder::make() {
  if (folder_.empty()) return;
  std::error_code error;
  made_ = fs::create_directories(folder_, error);
  if (error || !fs::is_directory(folder_))
    throw ConfigError(
        Problem{"-o", "", folder_.string(), "a folder that can be made and written", error.message()});
}

RunFolder::~RunFolder() {
  if (steps_fd_ >= 0) ::close(steps_fd_);
  std::error_code not_empty;
  if (made_) fs::remove(folder_, not_empty);  // a run that was refused leaves nothing
}

std::optional<RunFolder::OwnPlan> RunFolder::own_plan() const {
  if (folder_.empty()) return {};
  const std::string file = (folder_ / "plan.json").string();
  std::string why = file + ": no such file";
  try {
    if (fs::exists(file)) return OwnPlan{file, load_plan_file(file), ""};
  } catch (const ConfigError& e) {
    if (!checkpoint_) throw;
    why = e.what();
  }
  if (!checkpoint_) return {};
  return OwnPlan{
      file, checkpoint_->manifest().plan,
      fmt::format("{}: its plan is that of {}", why, (checkpoint_->path() / kManifestName).string())};
}

// Nothing of an older run is touched before the new one has its state, or when it has nothing to do.
void RunFolder::begin() {
  const std::int64_t step = checkpoint_ ? checkpoint_->manifest().clock.step : 0;
  if (step >= steps_) return;
  clear_leftovers(folder_);
  if (checkpoint_) set_aside_after(folder_, step);
  const fs::path steps = folder_ / kSteps;
  if (!checkpoint_) keep_steps_aside(steps);
  const LogBefore log = log_before(steps, step);
  if (!log.missing.empty()) {
    const fs::path aside = keep_steps_aside(steps);
    warn_(
        fmt::format("{}: no whole line is there of step {}, which the checkpoint of step {} has behind it{}; "
                    "training continues",
                    steps.string(), log.missing, step,
                    aside.empty() ? "" : fmt::format(" (the file as it was: {})", aside.string())));
  }
  open_steps(log.lines);
  save_plan_file(folder_ / "plan.json", save_.plan);
  write_file_atomic(folder_ / kRunOptionsFile, options_);
}

void RunFolder::open_steps(const std::string& lines) {
  const fs::path steps = folder_ / kSteps;
  if (steps_fd_ >= 0) ::close(std::exchange(steps_fd_, -1));
  write_file_atomic(steps, lines);
  steps_fd_ = ::open(steps.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (steps_fd_ < 0)
    throw ConfigError(
        Problem{steps.string(), "", "cannot be written", "a folder one may write to", std::strerror(errno)});
}

void RunFolder::add_step(const std::string& line, Seconds step) {
  if (step.v > 0) step_ = step;
  if (steps_fd_ < 0) return;
  const std::lock_guard lock(steps_mutex_);
  const bool waited = !unwritten_.empty();
  unwritten_ += line + '\n';
  if (!write_steps() && !waited)
    warn_(fmt::format("{}: {}; its lines are kept, and training continues", (folder_ / kSteps).string(),
                      std::strerror(errno)));
}

bool RunFolder::write_steps() {
  while (!unwritten_.empty()) {  // a disk that fills up takes a part first
    const ssize_t written = ::write(steps_fd_, unwritten_.data(), unwritten_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    unwritten_.erase(0, static_cast<std::size_t>(written));
  }
  return true;
}

void RunFolder::sync() {
  if (steps_fd_ < 0) return;
  const std::lock_guard lock(steps_mutex_);
  if (!write_steps() || ::fsync(steps_fd_) != 0)
    throw BackendError(fmt::format("{}: {}", (folder_ / kSteps).string(), std::strerror(errno)));
}

bool RunFolder::time_to_stop() {
  const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::error_code error;
  if (flags_.time_limit_s > 0 && s >= flags_.time_limit_s)
    reason_ = fmt::format("the time limit of {} s", flags_.time_limit_s);
  else if (!flags_.stop_file.empty() && fs::exists(flags_.stop_file, error))
    reason_ = fmt::format("{} is there", flags_.stop_file);
  return !reason_.empty();
}

void RunFolder::attach(TrainingRun& run, const PlanFile& plan, std::int64_t seed, Tell tell, Tell warn) {
  warn_ = std::move(warn);
  if (flags_.time_limit_s > 0 || !flags_.stop_file.empty())
    run.time_to_stop = [this] { return time_to_stop(); };
  if (folder_.empty()) return;
  run.resume = checkpoint();
  save_.run = folder_;
  save_.every = flags_.save_every;
  save_.keep = {.last = flags_.keep_last, .every = flags_.keep_all ? 1 : flags_.keep_every};
  save_.plan = plan;
  save_.seed = seed;
  if (!options_.empty()) save_.options = options_;
  save_.before_commit = [this] { sync(); };
  save_.on_event = [this, tell = std::move(tell)](const SaveEvent& e) {
    if (!e.committed) return;
    if (!e.error.empty())
      warn_(fmt::format("the checkpoint of step {} is written, but: {}", e.step, e.error));
    const std::string what =
        fmt::format("checkpoint of step {}: {:.1f} MiB", e.step, static_cast<double>(e.bytes) / (1 << 20));
    if (e.end_wait)
      tell(fmt::format("{}, the last; the end of the run waited {:.2f} s for it", what, e.end_wait->v));
    else
      tell(fmt::format("{} in {:.2f} s, overlapped with training, which it stalled for {:.4f} s{}", what,
                       e.writing.v, e.pause.v,
                       step_.v > 0 ? fmt::format(", {:.2g} % of a step", 100 * (e.pause / step_)) : ""));
  };
  save_.on_problem = warn_;
  if (saves()) run.save = &save_;
  run.claim = [this] { lock_.emplace(folder_); };
  run.begin = [this](const StateMove&) { begin(); };
}

void RunFolder::go_on(TrainingRun& run, const PlanFile& plan) {
  if (flags_.time_limit_s > 0 || !flags_.stop_file.empty())
    run.time_to_stop = [this] { return time_to_stop(); };
  if (folder_.empty()) return;
  save_.plan = plan;
  if (saves()) run.save = &save_;
  run.begin = [this](const StateMove&) { save_plan_file(folder_ / "plan.json", save_.plan); };
}

const Checkpoint* RunFolder::go_back() {
  if (!saves()) return nullptr;
  sync();
  checkpoint_ = Checkpoint::open_newest(folder_);
  if (!checkpoint_) return nullptr;
  begin();
  return &*checkpoint_;
}

// A process that was killed may have closed its connections a little before its lock.
std::int64_t RunFolder::lead(std::int64_t step) {
  if (folder_.empty()) return step;
  sync();
  constexpr std::chrono::seconds kReleased{10};
  const auto until = std::chrono::steady_clock::now() + kReleased;
  while (!lock_) try {
      lock_.emplace(folder_);
    } catch (const ConfigError&) {
      if (std::chrono::steady_clock::now() > until) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  clear_leftovers(folder_);
  const LogBefore log = log_before(folder_ / kSteps, step);
  open_steps(log.lines);
  return log.steps;
}

const Checkpoint* RunFolder::read(std::int64_t step) {
  checkpoint_.emplace(Checkpoint::open(folder_, step));
  return &*checkpoint_;
}

}  // namespace sextant
