// The suite on real MPI processes, plain and behind emulated links. Run as: mpirun -n 4
// mpi_communicator_test. Every process runs every test; a failure on any of them fails the job.
#include <chrono>

#include "tests/runtime/communicators/communicator_suite.hpp"

namespace sextant::testing {
namespace {

Communicator* world = nullptr;

// The first `ranks` processes; the others wait for them. nullptr for those.
std::unique_ptr<Communicator> first_ranks(int ranks) {
  if (world->rank() >= ranks) return nullptr;
  std::vector<int> list(static_cast<std::size_t>(ranks));
  std::iota(list.begin(), list.end(), 0);
  return world->group(list);
}

std::vector<int> counts_up_to_world() {
  std::vector<int> counts;
  for (int ranks = 1; ranks <= world->size(); ranks += ranks < 2 ? 1 : 2) counts.push_back(ranks);
  return counts;
}

struct Mpi {
  static std::vector<int> rank_counts() { return counts_up_to_world(); }
  static void run(int ranks, const RankBody& body) {
    if (const auto c = first_ranks(ranks)) body(*c);
    world->barrier(kNoStream);
  }
};

struct ShapedMpi {
  static std::vector<int> rank_counts() { return counts_up_to_world(); }
  static void run(int ranks, const RankBody& body) {
    if (auto c = first_ranks(ranks)) {
      const LinkShape shape{2, BytesPerSecond(50e9), Seconds(1e-6), BytesPerSecond(20e9), Seconds(2e-6)};
      const auto shaped = make_shaped(std::move(c), make_fabric(shape, ranks, 1));
      body(*shaped);
    }
    world->barrier(kNoStream);
  }
};

using Backends = ::testing::Types<Mpi, ShapedMpi>;
INSTANTIATE_TYPED_TEST_SUITE_P(Processes, CommunicatorSuite, Backends);

// Bit for bit what the local reference gives, at a size beyond MPI's eager messages.
TEST(MpiCommunicator, EqualsTheLocalReference) {
  const std::int64_t count = 300'001;
  auto mine = random_input<float>(77, world->rank(), count);
  world->all_reduce(mine.data(), mine.data(), count, Dtype::fp32, Reduction::sum, kNoStream);
  run_local_ranks(world->size(), [&](Communicator& c) {
    auto x = random_input<float>(77, c.rank(), count);
    c.all_reduce(x.data(), x.data(), count, Dtype::fp32, Reduction::sum, kNoStream);
    if (c.rank() == world->rank()) {
      EXPECT_TRUE(same_bits(x, mine));
      x[12345] = -x[12345];
      EXPECT_FALSE(same_bits(x, mine));  // negative control
    }
  });
}

}  // namespace

// `--abort`: rank 1 gives up while the others wait in a collective. All must end, with exit code 7.
int run_abort() {
  try {
    if (world->rank() == 1) {
      world->abort("rank 1 gives up");
      throw BackendError("rank 1 gives up");
    }
    double x = 0;
    world->all_reduce(&x, &x, 1, Dtype::fp64, Reduction::sum, kNoStream);
    return 0;
  } catch (const BackendError& error) {
    std::fprintf(stderr, "rank %d: %s\n", world->rank(), error.what());
    // The others need the message before this process takes the job down.
    std::this_thread::sleep_for(std::chrono::milliseconds(world->rank() == 1 ? 500 : 0));
    return static_cast<int>(ExitCode::run_failed);
  }
}

int run_tests(int argc, char** argv) {
  const auto owned = make_mpi_world();
  world = owned.get();
  if (argc > 1 && std::string_view(argv[1]) == "--abort") return run_abort();
  if (world->rank() != 0)  // one report is enough; failures are still printed
    delete ::testing::UnitTest::GetInstance()->listeners().Release(
        ::testing::UnitTest::GetInstance()->listeners().default_result_printer());
  const int failed = RUN_ALL_TESTS();
  double any = failed;
  world->all_reduce(&any, &any, 1, Dtype::fp64, Reduction::max, kNoStream);
  if (failed && world->rank() != 0) std::fprintf(stderr, "rank %d: tests failed\n", world->rank());
  return any > 0;
}

}  // namespace sextant::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return sextant::testing::run_tests(argc, argv);
}
