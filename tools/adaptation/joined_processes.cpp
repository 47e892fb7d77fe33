// Processes that come to a job which is under way (adaptive_run.hpp): one that was lost and started again, or one more. They wait
// at the first's entrance while it searches for a layout with them; where one pays, all that are there and those that are let in
// meet anew, and the state moves as between any two layouts.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "tools/adaptation/adaptive_run.hpp"
#include "tools/adaptation/decision_text.hpp"

namespace sextant {
namespace {

// Steps wait for a try, of up to a second where somebody else has the port.
constexpr std::chrono::seconds kFirstWait{1}, kLongestWait{600};

template <class Gpus>
nlohmann::json places_json(const Gpus& gpus) {
  nlohmann::json places = nlohmann::json::array();
  for (const GpuPlace& gpu : gpus) places.push_back({gpu.node, gpu.gpu});
  return places;
}

std::vector<GpuPlace> places_of(const nlohmann::json& places) {
  std::vector<GpuPlace> gpus;
  for (const nlohmann::json& place : places) gpus.push_back({place.at(0).get<int>(), place.at(1).get<int>()});
  return gpus;
}

int rank_of(const std::vector<GpuPlace>& gpus, const GpuPlace& gpu) {
  const auto found = std::ranges::find(gpus, gpu);
  return found == gpus.end() ? -1 : static_cast<int>(found - gpus.begin());
}

}  // namespace

void AdaptiveRun::open_entrance(const Runnable& runnable) {
  if (!outlives_ranks() || !decides()) return;
  std::set<int> here;
  for (const GpuPlace& gpu : gpus_) here.insert(rank_of(places_, gpu));
  if (entrance_) return entrance_->set_here(std::move(here));
  try {
    entrance_ = std::make_unique<TcpEntrance>(hooks_.job(runnable), std::move(here),
                                              static_cast<int>(places_.size()));
  } catch (const BackendError& e) {
    if (entrance_waits_ == kFirstWait)
      hooks_.tell(fmt::format("no process can come to this run as yet: {}", e.what()));
    entrance_tried_ = std::chrono::steady_clock::now();
    entrance_waits_ = std::min(2 * entrance_waits_, kLongestWait);
  }
}

void AdaptiveRun::look_for_newcomers(const Runnable& present) {
  if (!entrance_ && std::chrono::steady_clock::now() > entrance_tried_ + entrance_waits_)
    open_entrance(present);
  if (!entrance_ || !policy_ || trial_ || next_) return;
  std::set<GpuPlace> now;
  for (const int rank : entrance_->waiting()) now.insert(places_.at(static_cast<std::size_t>(rank)));
  std::vector<GpuPlace> come, gone;
  std::ranges::set_difference(now, waiting_, std::back_inserter(come));
  std::ranges::set_difference(waiting_, now, std::back_inserter(gone));
  if (!gone.empty()) {
    const Decision without = policy_->lose(gone, next_step_ - 1, steps_ - next_step_);
    hooks_.decisions.add(decision_json(without));
    hooks_.tell(decision_text(without));
  }
  waiting_ = std::move(now);
  if (come.empty()) return;
  policy_->find(come, next_step_ - 1);
  for (const std::string& line : policy_->evidence())
    hooks_.tell(fmt::format("step {}: {}; looking for a layout with it", next_step_ - 1, line));
}

// By rank of the next layout: the first stays the first, the others sit in the order of their GPUs. Who is let in knows it before
// the others do: the entrance is closed when they come.
std::string AdaptiveRun::placement(int ranks) {
  std::vector<GpuPlace> others(gpus_.begin() + 1, gpus_.end());
  for (const int rank : entrance_->waiting())
    if (const GpuPlace& gpu = places_.at(static_cast<std::size_t>(rank)); waiting_.contains(gpu))
      others.push_back(gpu);
  if (std::ssize(others) + 1 != ranks) return "[]";
  std::ranges::sort(others);
  others.insert(others.begin(), gpus_.front());
  std::map<int, int> rank_of_guest;
  for (const GpuPlace& gpu : waiting_) rank_of_guest[rank_of(places_, gpu)] = rank_of(others, gpu);
  entrance_->invite(rank_of_guest, ranks, generation_ + 1);
  return places_json(others).dump();
}

bool AdaptiveRun::take_in(const Runnable& present, const PlanFile& next) {
  const int ranks = next_->plan.world();
  const auto placed = places_of(nlohmann::json::parse(heard_of_first([&] { return placement(ranks); })));
  entrance_.reset();
  std::unique_ptr<Communicator> grown;
  if (!placed.empty()) {
    TcpWorld job = hooks_.job(present);
    job.rank = rank_of(placed, own_gpu_);
    job.ranks = ranks;
    job.generation = ++generation_;
    job.patience = kToBeAdmitted;
    job.outlives_ranks = true;
    try {
      grown = make_tcp_world(job);
    } catch (const BackendError& e) {
      if (decides()) hooks_.tell(fmt::format("those that were to be taken in have not come: {}", e.what()));
    }
  }
  if (processes_->least(grown ? 1 : 0) == 0) {
    just_lost_.assign(waiting_.begin(), waiting_.end());
    return false;
  }
  auto held = std::move(carried_.ranks[static_cast<std::size_t>(processes_->world().rank())]);
  carried_.ranks.clear();
  carried_.ranks.resize(static_cast<std::size_t>(ranks));
  carried_.ranks[static_cast<std::size_t>(grown->rank())] = std::move(held);
  gpus_ = placed;
  processes_.emplace(std::move(grown), hooks_.deadline);
  welcome(next);
  open_entrance(present);
  return true;
}

// What those who come cannot know; one of them may decide later.
void AdaptiveRun::welcome(const PlanFile& next) {
  for (const GpuPlace& gpu : gpus_) lost_.erase(gpu);
  waiting_.clear();
  std::string text;
  if (decides())
    text = nlohmann::json{{"first_plan", file_},          {"plan", next},
                          {"placed", places_json(gpus_)}, {"lost", places_json(lost_)},
                          {"generation", generation_},    {"start", start_},
                          {"next_step", next_step_},      {"reached", reached_}}
               .dump();
  processes_->hear(text);
}

void AdaptiveRun::join(std::unique_ptr<Runnable>& runnable) {
  const nlohmann::json told = nlohmann::json::parse(processes_->hear(""));
  file_ = told.at("first_plan").get<PlanFile>();
  search_.emplace(question_of(file_, profile_, presets_), file_.plan, presets_, 1, LayoutSearch::Idle::none);
  gpus_ = places_of(told.at("placed"));
  const auto lost = places_of(told.at("lost"));
  lost_ = {lost.begin(), lost.end()};
  told.at("generation").get_to(generation_);
  told.at("start").get_to(start_);
  told.at("next_step").get_to(next_step_);
  told.at("reached").get_to(reached_);
  joined_at_ = reached_;
  auto next = told.at("plan").get<PlanFile>();
  layout_ = Layout{next.plan, {}};
  runnable = std::make_unique<Runnable>(running_, std::move(next), profile_, presets_);
  carried_.ranks.resize(gpus_.size());  // all of it is with others
}

}  // namespace sextant
