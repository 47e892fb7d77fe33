#include "runtime/checkpoint/checkpoint_writer.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/digest.hpp"
#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "core/base/safetensors.hpp"
#include "runtime/checkpoint/file_header.hpp"
#include "runtime/communicators/communicator.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kNever = 1'000'000'000;
constexpr const char* kExtentsKey = "sextant.extents";
constexpr const char* kStepKey = "sextant.step";

Seconds since(Clock::time_point start) {
  return Seconds(std::chrono::duration<double>(Clock::now() - start).count());
}

std::string file_of(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

// The first rank's part when another has failed.
class OthersFailed : public BackendError {
 public:
  using BackendError::BackendError;
};

// Training comes first where cores are few.
void yield_to_others() { (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 5); }

}  // namespace

CheckpointWriter::CheckpointWriter(const CheckpointOptions& options, const OptimizerSpec& optimizer,
                                   RankTrainer& trainer, int rank, int world,
                                   std::optional<std::int64_t> resumed)
    : options_(options),
      trainer_(trainer),
      rank_(rank),
      world_(world),
      stream_(trainer.device().create_stream("checkpoint")),
      staged_(trainer.state(), trainer.device()),
      committed_(resumed),
      background_thread_([this] { std::exchange(saved_, {})(); }) {
  next_.dtype = trainer.state().accumulator();
  next_.optimizer = optimizer;
  next_.seed = options.seed;
  next_.plan = options.plan;
  next_.options = options.options;
  trainer.before_update = [this] { wait_for_copy(); };
}

CheckpointWriter::~CheckpointWriter() {
  abandoned_ = true;
  trainer_.before_update = {};
  try {
    wait_for_copy();
  } catch (...) {  // it is told where it ends the run
  }
}

std::array<double, CheckpointWriter::kVotes> CheckpointWriter::votes() {
  look();
  return {busy_ ? 1.0 : 0.0, failed_ ? 1.0 : 0.0};
}

// What every rank decides here follows from the sums alone, so all decide alike.
void CheckpointWriter::heard(std::span<const double> sums) {
  const bool busy = sums[0] > 0, failed = sums[1] > 0;
  may_stage_ = !busy && !(outstanding_ && failed);
  if (!outstanding_) return;
  if (failed) abandoned_ = true;
  if (busy) return;
  if (failed) tell_failure();
  outstanding_ = failed_ = false;
  if (rank_ != 0 || !failed) return;
  // Nobody writes into the folder any more.
  start([this] {
    yield_to_others();
    discard_unfinished(options_.run, event_.step);
  });
  report();
}

void CheckpointWriter::save_if_due(StepReport& report) {
  due_ = due_ || (options_.every > 0 && trainer_.clock().step % options_.every == 0);
  report.save_pause = std::exchange(waited_, {});
  if (due_ && may_stage_) {
    report.duration += stage();
    report.save_pause += event_.pause;
  }
  stand_by(report.duration);
}

// A copy has the time of a step: to find it a little late is soon enough.
void CheckpointWriter::stand_by(Seconds step) {
  const std::int64_t left = options_.every == 0 ? kNever
                            : due_              ? 1
                                                : options_.every - trainer_.clock().step % options_.every;
  background_thread_.look_every(step * (left > 1 ? static_cast<double>(left - 1) / 2 : 1.0 / 16));
}

Seconds CheckpointWriter::stage() {
  const auto last_update = Clock::now();
  trainer_.finish();
  const Seconds update = since(last_update);
  began_ = Clock::now();
  staged_.begin(trainer_.state(), trainer_.device(), stream_);
  next_.clock = trainer_.clock();
  event_ = {};
  event_.step = next_.clock.step;
  outstanding_ = copying_ = busy_ = true;
  may_stage_ = due_ = abandoned_ = false;
  saved_ = std::packaged_task<void()>([this] { save(); });
  running_ = saved_.get_future();
  background_thread_.begin();
  event_.pause = since(began_);
  return update;
}

// What goes wrong is handed on as words: an exception would belong to two threads.
void CheckpointWriter::save() {
  try {
    staged_.help([this] { at(SavePoint::copy); });
    staged_.finish(trainer_.device());
    // By a thread of its own, as none gets back the turns that it has once yielded.
    std::async(std::launch::async, [this] {
      yield_to_others();
      if (rank_ == 0 && options_.data) next_.data = options_.data(next_.clock.step);
      write_file();
      if (rank_ == 0) commit();
    }).get();
  } catch (const OthersFailed& e) {
    outcome_.error = e.what();
  } catch (const std::exception& e) {
    outcome_.error = outcome_.problem = e.what();
  }
}

void CheckpointWriter::wait_for_copy() {
  if (!copying_) return;
  const auto start_time = Clock::now();
  staged_.finish(trainer_.device());
  copying_ = false;
  const Seconds waited = since(start_time);
  waited_ += waited;
  event_.pause += waited;
}

// The file has its name when it is whole.
void CheckpointWriter::write_file() const {
  const fs::path folder = unfinished_path(options_.run, next_.clock.step);
  fs::create_directories(folder);
  at(SavePoint::write_file);
  std::vector<StoredExtent> extents;
  std::vector<TensorToStore> tensors;
  for (const StateSnapshot::Piece& piece : staged_.pieces()) {
    StoredExtent& e = extents.emplace_back(StoredExtent{piece.tensor, piece.extent, {}});
    for (std::size_t f = 0; f < kStateFields.size(); ++f) {
      e.digests[f] = digest(piece.data[f]);
      tensors.push_back({stored_name(e, kStateFields[f]),
                         stored_type(next_.dtype),
                         {piece.extent.rows, piece.extent.cols},
                         piece.data[f]});
    }
  }
  const fs::path path = folder / file_of(rank_), part = path.string() + ".part";
  write_safetensors(part, tensors,
                    {{kExtentsKey, extents_text(extents)}, {kStepKey, std::to_string(next_.clock.step)}});
  at(SavePoint::file_written);
  fs::rename(part, path);
}

void CheckpointWriter::wait_for_files() const {
  const fs::path folder = unfinished_path(options_.run, next_.clock.step);
  auto pause = std::chrono::milliseconds(1);
  for (int rank = 0; rank < world_;) {
    if (fs::exists(folder / file_of(rank))) {
      ++rank;
      continue;
    }
    if (abandoned_) throw OthersFailed(fmt::format("rank {} has not written its part", rank));
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(100));
  }
}

Manifest CheckpointWriter::collect() const {
  Manifest manifest = next_;
  const fs::path folder = unfinished_path(options_.run, manifest.clock.step);
  for (int rank = 0; rank < world_; ++rank) {
    const fs::path path = folder / file_of(rank);
    const SafetensorsFile file(path);
    const auto& metadata = file.metadata();
    const auto extents = metadata.find(kExtentsKey), step = metadata.find(kStepKey);
    if (extents == metadata.end() || step == metadata.end() ||
        step->second != std::to_string(manifest.clock.step))
      throw BackendError(fmt::format("{} is not of step {}", path.string(), manifest.clock.step));
    const std::string header = file_header(path);
    if (header.empty()) throw BackendError(fmt::format("{} is not what was written", path.string()));
    manifest.files.push_back({file_of(rank), static_cast<std::int64_t>(fs::file_size(path)), digest(header),
                              parse_extents(extents->second, path.string())});
  }
  return manifest;
}

void CheckpointWriter::commit() {
  wait_for_files();
  at(SavePoint::write_manifest);
  const Manifest manifest = collect();
  const std::string text = manifest_text(manifest);
  (void)parse_manifest(text, "what the ranks have written");  // never commit what could not be read again
  write_file_atomic(unfinished_path(options_.run, manifest.clock.step) / kManifestName, text);
  event_.bytes = static_cast<std::int64_t>(text.size());
  for (const StoredFile& file : manifest.files) event_.bytes += file.bytes;
  if (options_.before_commit) options_.before_commit();
  at(SavePoint::commit);
  commit_checkpoint(options_.run, manifest.clock.step);
  event_.committed = true;
  event_.writing = since(began_);
  at(SavePoint::committed);
  drop_old_checkpoints(options_.run, options_.keep, manifest.clock.step);
}

void CheckpointWriter::start(std::function<void()> work) {
  busy_ = true;
  running_ = std::async(std::launch::async, std::move(work));
}

void CheckpointWriter::look() {
  if (!busy_ || running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  busy_ = false;
  Outcome outcome;
  try {
    running_.get();
    outcome = std::exchange(outcome_, {});
  } catch (const std::exception& e) {
    outcome.error = outcome.problem = e.what();
  }
  if (!outstanding_) return;  // an unfinished folder has been removed, as far as it could
  event_.error = outcome.error;
  problem_ = outcome.problem;
  if (event_.committed) {  // whatever came after it
    committed_ = event_.step;
    return report();
  }
  failed_ = !outcome.error.empty();
}

int CheckpointWriter::first_that_failed() {
  std::vector<double> failed(static_cast<std::size_t>(world_), 0.0);
  failed[static_cast<std::size_t>(rank_)] = problem_.empty() ? 0 : 1;
  trainer_.agree(failed);
  return static_cast<int>(std::ranges::find(failed, 1.0) - failed.begin());
}

void CheckpointWriter::tell_failure() {
  if (first_that_failed() != rank_ || !options_.on_problem || end_ == End::last_try) return;
  // Not this step: first what is left of the failed save is removed, beside training.
  const auto next = [&] {
    const std::int64_t step = trainer_.clock().step + 1, every = options_.every;
    return fmt::format("training continues, and the first that can be saved next is step {}, or the end",
                       due_ ? step : (step + every - 1) / every * every);
  };
  options_.on_problem(fmt::format("the checkpoint of step {} could not be written: {}; {}", event_.step,
                                  problem_, end_ == End::no ? next() : "the run ends with another try"));
}

void CheckpointWriter::report() {
  if (ending_) event_.end_wait = since(*ending_);
  if (rank_ == 0 && options_.on_event) options_.on_event(event_);
}

void CheckpointWriter::wait() {
  if (busy_) {
    background_thread_.hurry();
    running_.wait();
  }
  look();
}

void CheckpointWriter::exchange() {
  auto all = votes();
  trainer_.agree(all);
  heard(all);
}

void CheckpointWriter::settle() {
  if (rank_ != 0) wait();  // the first rank's thread waits for the others, unless they have failed
  exchange();
  wait();
  exchange();
  wait();
}

void CheckpointWriter::finish() {
  end_ = End::first_try;
  if (outstanding_ && event_.step == trainer_.clock().step) ending_ = Clock::now();
  const auto committed = [&] {
    double yes = rank_ == 0 && committed_ == trainer_.clock().step ? 1 : 0;
    trainer_.agree({&yes, 1});
    return yes > 0;
  };
  settle();
  if (committed()) return;
  ending_ = Clock::now();
  end_ = End::last_try;
  stage();
  settle();
  if (committed()) return;
  const int first = first_that_failed();
  if (rank_ != first)
    throw Aborted(fmt::format(
        "the last checkpoint could not be written; the message of rank {} gives the reason", first));
  const auto saved = committed_checkpoints(options_.run);
  throw BackendError(
      fmt::format("the checkpoint of step {} could not be written: {}; {}", event_.step, problem_,
                  saved.empty() ? "nothing of the run is saved"
                                : fmt::format("--resume continues from step {}", saved.back().step)));
}

}  // namespace sextant
