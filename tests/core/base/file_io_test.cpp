// Files are read whole or refused with a reason, and written whole or not at all.
#include "core/base/file_io.hpp"

#include <array>
#include <csignal>
#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

template <class Action>
std::string config_error(Action action) {
  try {
    action();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

TEST(ReadTextFile, ReadsTheWholeFile) {
  const TempDir dir;
  const std::string text(200'000, 'x');
  EXPECT_EQ(read_text_file(dir.write("a", text)), text);
}

TEST(ReadTextFile, SaysWhyItCannot) {
  const TempDir dir;
  EXPECT_TRUE(
      has(config_error([&] { read_text_file(dir.path() / "none.json"); }), "none.json: no such file"));
  EXPECT_TRUE(has(config_error([&] { read_text_file(dir.path()); }), "is a directory"));
  EXPECT_TRUE(has(config_error([&] { read_text_file(dir.write("f", "") / "x"); }), "cannot be read"));
  if (::geteuid() == 0) return;  // root reads everything
  const auto secret = dir.write("secret", "x");
  ::chmod(secret.c_str(), 0);
  EXPECT_TRUE(has(config_error([&] { read_text_file(secret); }), "Permission denied"));
}

TEST(ReadTextFile, RefusesLargeFilesUnread) {
  const TempDir dir;
  const auto big = dir.write("big.json", "{");
  fs::resize_file(big, 200'000'000);  // sparse: reading it would still take the time of 200 MB
  const std::string message = config_error([&] { read_text_file(big); });
  EXPECT_TRUE(has(message, "is 190.7 MiB, expected at most 64.0 MiB; it was not read")) << message;
  EXPECT_TRUE(has(config_error([&] { read_text_file("/dev/zero", 1 << 20); }), "is larger"));
}

// Nobody writes into it: reading would wait for ever.
TEST(ReadTextFile, RefusesANamedPipeAndReadsOneOfAShell) {
  const TempDir dir;
  const std::string fifo = (dir.path() / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ::alarm(20);
  EXPECT_TRUE(has(config_error([&] { read_text_file(fifo); }), "is a named pipe, expected a file"));
  ::alarm(0);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  ::close(ends[1]);
  EXPECT_EQ(read_text_file("/dev/fd/" + std::to_string(ends[0])), "x");
  ::close(ends[0]);
}

TEST(WriteFileAtomic, ReplacesKeepingModeAndLinks) {
  const TempDir dir;
  const auto file = dir.write("plan.json", "old");
  ::chmod(file.c_str(), 0640);
  fs::create_symlink("plan.json", dir.path() / "link");
  write_file_atomic(dir.path() / "link", "new");
  EXPECT_EQ(read_text_file(file), "new");
  EXPECT_TRUE(fs::is_symlink(dir.path() / "link"));
  EXPECT_EQ(static_cast<int>(fs::status(file).permissions()), 0640);
  write_file_atomic(dir.path() / "fresh", "x");
  EXPECT_EQ(static_cast<int>(fs::status(dir.path() / "fresh").permissions()) & 0600, 0600);
  EXPECT_EQ(dir.files(), 3U);
}

TEST(WriteFileAtomic, SaysWhyItCannot) {
  const TempDir dir;
  EXPECT_TRUE(
      has(config_error([&] { write_file_atomic(dir.path() / "no/such/a", "x"); }), "cannot be written"));
  EXPECT_TRUE(has(config_error([&] { write_file_atomic(dir.path(), "x"); }), "Is a directory"));
}

// Nobody reads from the first: opening it would wait for ever.
TEST(WriteFileAtomic, RefusesANamedPipeWithoutAReaderAndWritesToOneWithOne) {
  const TempDir dir;
  const std::string fifo = (dir.path() / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ::alarm(20);
  EXPECT_TRUE(has(config_error([&] { write_file_atomic(fifo, "x"); }), "that nobody reads, expected a file"));
  const int reader = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_file_atomic(fifo, "x");
  char found = 0;
  EXPECT_EQ(::read(reader, &found, 1), 1);
  ::close(reader);
  ::alarm(0);
  EXPECT_EQ(found, 'x');
  EXPECT_TRUE(fs::is_fifo(fifo));
}

TEST(WriteFileAtomic, AFullDeviceIsABackendErrorAndStaysADevice) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  try {
    write_file_atomic("/dev/full", "x");
    FAIL() << "accepted";
  } catch (const BackendError& e) {
    EXPECT_TRUE(has(e.what(), "No space left on device")) << e.what();
  }
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

// The system stops the file at 64 KiB, as a full disk would in the middle of the write.
TEST(WriteFileAtomic, LeavesTheOldFileAndNoOtherWhenWritingFails) {
  const TempDir dir;
  const auto file = dir.write("plan.json", "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 16, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_file_atomic(file, std::string(1 << 20, 'x')), BackendError);
  EXPECT_THROW(write_file_atomic(dir.path() / "other", std::string(1 << 20, 'x')), BackendError);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_text_file(file), "old");
  EXPECT_EQ(dir.files(), 1U);
  write_file_atomic(file, std::string(1 << 20, 'x'));  // control: without the limit it succeeds
  EXPECT_EQ(fs::file_size(file), std::uintmax_t{1} << 20);
}

}  // namespace
}  // namespace sextant
