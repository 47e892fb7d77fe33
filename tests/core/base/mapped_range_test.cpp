// System: files as memory. Expectation: the bytes of the file; and of a file that is cut while it is in use, an end that
// names it, not a signal.
#include "core/base/mapped_range.hpp"

#include <csignal>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/temp_dir.hpp"

namespace sextant::testing {
namespace {

MappedRange map(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  MappedRange range(fd, std::filesystem::file_size(path), path);
  ::close(fd);
  return range;
}

char at(const MappedRange& range, std::size_t i) { return static_cast<char>(range.bytes()[i]); }

TEST(MappedRange, ComesBackWhenItWasLetGo) {
  const TempDir folder;
  std::string text(100'000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  const MappedRange range = map(folder.write("file", text));
  for (const auto& [begin, size] :
       {std::pair{0UL, 100'000UL}, {5UL, 3UL}, {5000UL, 60'000UL}, {100'000UL, 0UL}}) {
    let_go(range.bytes().subspan(begin, size));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(range.bytes().data()), text.size()), text);
  }
}

TEST(MappedRange, IsTheFile) {
  const TempDir folder;
  MappedRange one = map(folder.write("one", "first")), other = map(folder.write("other", "second"));
  EXPECT_EQ(one.bytes().size(), 5U);
  EXPECT_EQ(at(one, 4), 't');
  one = std::move(other);
  EXPECT_EQ(at(one, 5), 'd');
  EXPECT_FALSE(MappedRange());
  EXPECT_FALSE(MappedRange(-1, 5, "none"));
}

[[noreturn]] void touch_what_is_cut(const std::filesystem::path& path, const std::filesystem::path& kept) {
  for (int i = 0; i < 3; ++i) (void)map(path);  // forgotten again
  const MappedRange before = map(kept), range = map(path), behind = map(kept);
  if (::truncate(path.c_str(), 0) != 0 || at(before, 3) != 't' || at(behind, 3) != 't') ::_exit(9);
  ::_exit(at(range, 10000) == 'x' ? 8 : 7);
}

[[noreturn]] void fail_elsewhere(const std::filesystem::path& kept) {
  const MappedRange range = map(kept);
  ::raise(SIGBUS);
  ::_exit(at(range, 0));
}

TEST(MappedRangeDeathTest, AFileThatIsCutIsNamed) {
  const TempDir folder;
  const auto path = folder.write("cut", std::string(20000, 'x')), kept = folder.write("kept", "kept");
  EXPECT_EXIT(touch_what_is_cut(path, kept), ::testing::ExitedWithCode(3),
              "sextant: .*/cut: can no longer be read: the disk fails");
  EXPECT_EXIT(fail_elsewhere(kept), ::testing::KilledBySignal(SIGBUS), "") << "control: of no file";
}

}  // namespace
}  // namespace sextant::testing
