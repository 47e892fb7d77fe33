// Killed at any instruction: starts small runs, ends them with kill -9 at random places (all ranks at once, or one MPI rank of
// two), on a disk that is slow, full or fails, resumes them, and holds them to this: the newest checkpoint is whole and
// readable after every kill, no committed step is ever lost, and every loss equals that of a run that nobody killed, bit by
// bit. Prints what it did; --help says how it is called.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/file_io.hpp"
#include "tests/runtime/checkpoint/checkpoint_trial.hpp"
#include "tests/runtime/checkpoint/killed_run.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::testing {
namespace {

namespace fs = std::filesystem;
constexpr const char* kLayouts[] = {"dp2.z1.mbs2.b4K", "tp2.sp.mbs4", "pp2.mbs2", "dp2.z3.mbs1.po.oo60"};

constexpr const char* kHelp =
    R"(usage: kill_campaign [--kills N] [--seed N] [--mpiexec PATH [--share-mpi PERCENT]] [--spoil 1]

Starts small runs, ends them with kill -9 at random places, resumes them, and compares every loss with a run
that nobody killed. Exit code 0: no committed step was lost, no checkpoint was torn, every loss is the same.

  --kills N            how many (20)
  --seed N             of what is drawn (1)
  --mpiexec PATH       some of the runs are jobs of two MPI processes, of which one is killed: at least one
                       is, or the campaign fails. For Open MPI it sets what root and few cores need
  --share-mpi PERCENT  of the starts that are such jobs (15)
  --spoil 1            the control: flips a byte of a checkpoint after a kill, and the campaign must fail
)";

struct Process {
  pid_t pid = -1;
  int out = -1;
  std::string rest;

  // The next line, or nothing when there is none within the time or no more.
  std::optional<std::string> line(int timeout_ms) {
    while (true) {
      if (const auto end = rest.find('\n'); end != std::string::npos) {
        std::string first = rest.substr(0, end);
        rest.erase(0, end + 1);
        return first;
      }
      pollfd p{out, POLLIN, 0};
      if (::poll(&p, 1, timeout_ms) <= 0) return {};
      char block[4096];
      const ssize_t n = ::read(out, block, sizeof block);
      if (n <= 0) return {};
      rest.append(block, static_cast<std::size_t>(n));
    }
  }
};

Process start(const std::vector<std::string>& command, const fs::path& errors) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    const int file = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    ::dup2(file, STDERR_FILENO);  // mpirun has much to say about a killed rank
    ::close(ends[0]);
    ::close(ends[1]);
    std::vector<char*> argv;
    for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  return {pid, ends[0], ""};
}

struct Tally {
  int kills = 0, of_one_rank = 0, in_a_save = 0, resumes = 0, runs = 0, ended_by_disk = 0;
  int kills_on_good_disk = 0;
  std::int64_t again_on_good_disk = 0;
  std::int64_t steps = 0, steps_again = 0, commits = 0, failed_saves = 0, committed_lost = 0, torn = 0,
               wrong_losses = 0, stuck = 0;
  int rounds[5] = {};
};

class Campaign {
 public:
  Campaign(std::string self, int kills, unsigned seed, std::string mpiexec, unsigned share_mpi, bool spoil)
      : self_(std::move(self)),
        kills_(kills),
        mpiexec_(std::move(mpiexec)),
        share_mpi_(share_mpi),
        spoil_(spoil),
        random_(seed) {
    // A disk of its own, which can be full: needs root and a kernel that lets it.
    mounted_ = ::mount("tmpfs", disk_.path().c_str(), "tmpfs", 0, "size=32m") == 0;
  }
  ~Campaign() {
    if (mounted_) ::umount2(disk_.path().c_str(), MNT_DETACH);
  }
  Campaign(const Campaign&) = delete;

  bool go() {
    for (int run = 0; tally_.kills < kills_ && good(); ++run) {
      const std::string key = kLayouts[static_cast<std::size_t>(run) % std::size(kLayouts)];
      folder_ = disk_.path() / fmt::format("run{}", run);
      fs::create_directories(folder_);
      CheckpointTrial reference(key);
      reference.run.optimizer.total_steps = kRunSteps;
      reference.run.on_start = reference.run.on_end = {};
      reference.go(kRunSteps);
      if (!reference.error.empty()) throw std::runtime_error(reference.error);
      expected_ = reference.losses();
      newest_ = 0;
      ++tally_.runs;
      while (tally_.kills < kills_ && good() && !round(key)) {
      }
      fs::remove_all(folder_);
    }
    print();
    return good();
  }

 private:
  bool good() const {
    return tally_.committed_lost == 0 && tally_.torn == 0 && tally_.wrong_losses == 0 && tally_.stuck == 0;
  }
  unsigned below(unsigned n) { return static_cast<unsigned>(random_() % n); }

  // What the ranks of one start have told.
  struct Heard {
    std::vector<pid_t> ranks;
    std::int64_t last_step = 0;
    bool done = false;
  };
  // True when the line is an event that a kill may follow.
  bool hear(const std::string& line, Heard& heard) {
    int number = 0, rank = 0;
    long long step = 0;
    char loss[64];
    if (std::sscanf(line.c_str(), "pid %d", &number) == 1) {
      heard.ranks.push_back(number);
      return false;
    }
    if (std::sscanf(line.c_str(), "from %lld", &step) == 1) {
      if (step != newest_) ++tally_.committed_lost;
      return false;
    }
    if (std::sscanf(line.c_str(), "loss %lld %63s", &step, loss) == 2) {
      ++tally_.steps;
      heard.last_step = std::max<std::int64_t>(heard.last_step, step + 1);
      if (std::strtod(loss, nullptr) != expected_.at(static_cast<std::size_t>(step))) ++tally_.wrong_losses;
    } else if (std::sscanf(line.c_str(), "commit %lld", &step) == 1) {
      ++tally_.commits;
      newest_ = std::max<std::int64_t>(newest_, step);
    } else if (line == "failed") {
      ++tally_.failed_saves;
    } else if (line == "done") {
      heard.done = true;
    } else if (line.starts_with("error")) {
      ++tally_.ended_by_disk;
      if (line.find(kRefused) != std::string::npos) {
        ++tally_.torn;
        std::cerr << line << '\n';
      }
    } else {
      return std::sscanf(line.c_str(), "at %d %d", &number, &rank) == 2;
    }
    return true;
  }

  // One start of the run. True when it came to its end.
  bool round(const std::string& key) {
    const bool last = tally_.kills + 1 >= kills_ && tally_.of_one_rank == 0;
    const bool mpi = !mpiexec_.empty() && share_mpi_ > 0 && (below(100) < share_mpi_ || last);
    const auto fault = spoil_ ? Fault::none : static_cast<Fault>(below(mounted_ ? 5 : 4));
    ++tally_.rounds[static_cast<int>(fault)];
    if (fault == Fault::full_disk) fill_disk();
    std::vector<std::string> command;
    if (mpi) command = {mpiexec_, "-n", "2"};
    for (const std::string& word :
         {self_, std::string("--child"), key, folder_.string(), std::to_string(static_cast<int>(fault)),
          std::to_string(random_()), std::string(mpi ? "mpi" : "local")})
      command.push_back(word);
    const fs::path errors = logs_.path() / "stderr";
    Process process = start(command, errors);

    // A kill between two events, so that it meets saves as often as steps; sometimes none.
    int events = static_cast<int>(below(8) == 0 ? 100000 : below(60));
    Heard heard{.ranks = {}, .last_step = newest_};
    bool killed = false;
    while (const auto line = process.line(60000)) {
      if (!hear(*line, heard)) continue;
      if (killed || heard.done || --events > 0) continue;
      std::this_thread::sleep_for(std::chrono::microseconds(below(3000)));
      const pid_t victim = mpi && !heard.ranks.empty()
                               ? heard.ranks[below(static_cast<unsigned>(heard.ranks.size()))]
                               : process.pid;
      ::kill(victim, SIGKILL);
      killed = true;
    }
    finish(process, heard.ranks);
    if (heard.ranks.empty())
      throw std::runtime_error(
          fmt::format("no run came up: {}\n{}", fmt::join(command, " "), read_text_file(errors)));
    if (fault == Fault::full_disk) fs::remove(disk_.path() / "filler");
    check();
    if (killed) {
      ++tally_.kills;
      tally_.of_one_rank += mpi;
      tally_.in_a_save += unfinished_;
      const auto again = std::max<std::int64_t>(0, heard.last_step - newest_);
      tally_.steps_again += again;
      if (fault == Fault::none) {
        ++tally_.kills_on_good_disk;
        tally_.again_on_good_disk += again;
      }
    }
    if (!heard.done) ++tally_.resumes;
    return heard.done;
  }

  // The job is over, or it is an error that it is not.
  void finish(Process& process, const std::vector<pid_t>& ranks) {
    for (int tenths = 0; ::waitpid(process.pid, nullptr, WNOHANG) == 0; ++tenths) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (tenths < 6000) continue;
      ++tally_.stuck;
      for (const pid_t pid : ranks) ::kill(pid, SIGKILL);
      ::kill(process.pid, SIGKILL);
    }
    ::close(process.out);
    for (const pid_t pid : ranks)
      for (int tries = 0; ::kill(pid, 0) == 0 && pid != process.pid && tries < 1000; ++tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  // What a run that is resumed now would find.
  void check() {
    unfinished_ = false;
    std::error_code error;
    for (fs::directory_iterator at(folder_ / "checkpoints", error), end; !error && at != end;
         at.increment(error))
      unfinished_ = unfinished_ || at->path().extension() == ".unfinished";
    if (const auto all = committed_checkpoints(folder_); spoil_ && !all.empty()) {
      std::fstream file(all.back().path / "rank-00000.safetensors",
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-5, std::ios::end);
      file.put('?');
    }
    std::int64_t found = 0;
    try {
      if (const auto checkpoint = Checkpoint::open_newest(folder_)) {
        checkpoint->verify();
        found = checkpoint->manifest().clock.step;
      }
    } catch (const std::exception& e) {
      ++tally_.torn;
      std::cerr << e.what() << '\n';
    }
    if (found < newest_) ++tally_.committed_lost;
    newest_ = found;  // a commit that the run had no time to tell of counts as well
  }

  void fill_disk() {
    struct statvfs info {};
    if (::statvfs(disk_.path().c_str(), &info) != 0) return;
    const auto free = static_cast<std::int64_t>(info.f_bavail * info.f_frsize);
    const std::int64_t left = below(3U << 20);  // up to one checkpoint and a half
    std::ofstream out(disk_.path() / "filler", std::ios::binary);
    const std::string block(1 << 16, 'x');
    for (std::int64_t n = free - left; n > 0; n -= 1 << 16)
      out.write(block.data(), std::min<std::int64_t>(n, 1 << 16));
  }

  void print() const {
    const Tally& t = tally_;
    std::cout << fmt::format(
        "{} kills with SIGKILL ({} of one MPI rank of two, the others of all ranks), {} of them with a save "
        "under way\n"
        "{} resumes of {} runs; {} ended by the disk\n"
        "{} steps done, {} of them again, {} commits seen, {} saves failed\n",
        t.kills, t.of_one_rank, t.in_a_save, t.resumes, t.runs, t.ended_by_disk, t.steps, t.steps_again,
        t.commits, t.failed_saves);
    for (int f = 0; f < 5; ++f)
      std::cout << fmt::format("{}{} {}", f ? ", " : "starts with fault: ", kFaultNames[f], t.rounds[f]);
    if (!mounted_) std::cout << " (no full disk: mounting one needs root)";
    const auto share = [](std::int64_t n, int of) { return of > 0 ? static_cast<double>(n) / of : 0.0; };
    std::cout << fmt::format(
        "\nsteps done again per kill: {:.1f}, with nothing wrong with the disk {:.1f} ({} kills); a "
        "checkpoint is due "
        "every {} steps\ncommitted steps lost: {}; torn or mixed checkpoints: {}; wrong losses: {}; jobs "
        "that "
        "hung: {}\n",
        share(t.steps_again, t.kills), share(t.again_on_good_disk, t.kills_on_good_disk),
        t.kills_on_good_disk, kSaveEvery, t.committed_lost, t.torn, t.wrong_losses, t.stuck);
  }

  std::string self_;
  int kills_;
  std::string mpiexec_;
  unsigned share_mpi_;
  bool spoil_;
  std::mt19937 random_;
  TempDir disk_, logs_;
  bool mounted_ = false, unfinished_ = false;
  fs::path folder_;
  std::vector<double> expected_;
  std::int64_t newest_ = 0;
  Tally tally_;
};

}  // namespace
}  // namespace sextant::testing

int main(int argc, char** argv) {
  using namespace sextant::testing;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 6 && words[0] == "--child")
    return child(words[1], words[2], static_cast<Fault>(std::stoi(words[3])),
                 static_cast<unsigned>(std::stoul(words[4])), words[5] == "mpi");
  if (!words.empty() && (words[0] == "--help" || words[0] == "-h")) {
    std::cout << kHelp;
    return 0;
  }
  // Root, containers and few cores need telling; other MPIs ignore these variables.
  for (const auto& [variable, value] : {std::pair{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                        {"OMPI_MCA_mpi_yield_when_idle", "1"},
                                        {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"}})
    ::setenv(variable, value, 0);
  std::map<std::string, std::string> given = {
      {"--kills", "20"}, {"--seed", "1"}, {"--mpiexec", ""}, {"--share-mpi", ""}, {"--spoil", "0"}};
  try {
    for (std::size_t i = 0; i < words.size(); i += 2) {
      if (!given.contains(words[i]) || i + 1 == words.size())
        throw std::runtime_error(words[i] + ": no such option, or no value; see --help");
      given[words[i]] = words[i + 1];
    }
    const auto number = [&](const char* flag) { return static_cast<unsigned>(std::stoul(given[flag])); };
    if (given["--mpiexec"].empty() && !given["--share-mpi"].empty())
      throw std::runtime_error("--share-mpi needs --mpiexec");
    if (given["--share-mpi"].empty()) given["--share-mpi"] = "15";
    return Campaign(std::filesystem::canonical("/proc/self/exe").string(),
                    static_cast<int>(number("--kills")), number("--seed"), given["--mpiexec"],
                    number("--share-mpi"), given["--spoil"] == "1")
                   .go()
               ? 0
               : 1;
  } catch (const std::exception& e) {
    std::cerr << "kill_campaign: " << e.what() << '\n';
    return 1;
  }
}
