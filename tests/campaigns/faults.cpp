// A disk that fails, lies or is slow, for a program that knows nothing of it (LD_PRELOAD).
//
// Environment, read once when the program starts:
//   FAULTS_UNDER    folder, absolute: calls on files below it count, all others pass
//   FAULTS_LOG      file to which each call and each fault is appended; see faults.py, which reads it
//   FAULTS_CALL     which call fails: a word of kCalls; "any": each of them
//   FAULTS_AT       the how many-th of these calls in this process, from 1
//   FAULTS_WHAT     an errno by its number; or: short (half of the bytes), slow (0.02 s), kill (the process ends instead)
//   FAULTS_STAYS    1: all later ones fail as well
//   FAULTS_LIE      from the how many-th sync on, 1 the first, all do nothing and say that they did
//   FAULTS_POWER    folder on the same file system: what renames and removals take away is kept there, and the log has what
//                   faults.py needs to lose all that was not on the disk yet
//
// mmap, stat and the loader's own calls are the C library's; what fwrite does inside of it is not seen, fopen is.
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

enum class Call {
  open,
  read,
  write,
  sync,
  rename,
  truncate,
  mkdir,
  close,
  link,
  remove,
  map,
  list,
  mode,
  copy,
  lock
};
constexpr const char* kCalls[] = {"open", "read",   "write", "sync", "rename", "truncate", "mkdir", "close",
                                  "link", "remove", "map",   "list", "mode",   "copy",     "lock"};

struct Settings {
  std::string under, what, call, kept;
  long at = 0, lie = 0;
  int error = 0, log = -1;
  bool stays = false;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

Settings read_settings() {
  Settings s;
  s.under = variable("FAULTS_UNDER");
  s.call = variable("FAULTS_CALL");
  s.kept = variable("FAULTS_POWER");
  s.what = variable("FAULTS_WHAT");
  s.error = std::atoi(s.what.c_str());
  s.at = std::atol(variable("FAULTS_AT").c_str());
  s.lie = std::atol(variable("FAULTS_LIE").c_str());
  s.stays = variable("FAULTS_STAYS") == "1";
  if (const std::string log = variable("FAULTS_LOG"); !log.empty())
    s.log = static_cast<int>(
        ::syscall(SYS_openat, AT_FDCWD, log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  return s;
}

// Static objects of the program may make calls before any of this library's is made.
const Settings& settings() {
  static const Settings* const all = new Settings(read_settings());
  return *all;
}

std::recursive_mutex& order() {  // what the log says happened in this order
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

int refused(int error) {
  errno = error;
  return -1;
}
template <class F>
F* real(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}
#define REAL(name) (*real<decltype(::name)>(#name))

void note(const std::string& line) {
  const std::string text = line + '\n';
  if (settings().log >= 0) ::syscall(SYS_write, settings().log, text.data(), text.size());
}

std::string link_of(const std::string& link) {
  char text[4096];
  const auto size = ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), text, sizeof text);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : "";
}

std::string path_of(int fd) { return fd < 0 ? "" : link_of("/proc/self/fd/" + std::to_string(fd)); }

std::string path_at(int folder, const char* path) {
  if (!path || !*path) return path_of(folder);
  if (*path == '/') return path;
  return (folder == AT_FDCWD ? link_of("/proc/self/cwd") : path_of(folder)) + '/' + path;
}

bool counts(const std::string& path) {
  const std::string& under = settings().under;
  return !under.empty() && path.starts_with(under) &&
         (path.size() == under.size() || path[under.size()] == '/');
}

bool power() { return !settings().kept.empty(); }

// What becomes of this call: 0 passes, an errno fails, and kShort the caller knows.
constexpr int kShort = -1;
int verdict(Call call, const std::string& path) {
  static long done = 0;
  if (!counts(path)) return 0;
  const Settings& s = settings();
  const char* name = kCalls[static_cast<int>(call)];
  const std::lock_guard guard(order());
  note(fmt::format("call {} {}", name, path));
  if (s.at == 0 || (s.call != "any" && s.call != name)) return 0;
  ++done;
  if (done < s.at || (done > s.at && !s.stays)) return 0;
  note(fmt::format("fault {} {}", name, path));
  if (s.what == "kill") ::syscall(SYS_kill, ::getpid(), 9);
  if (s.what == "slow") {
    const timespec pause{0, 20'000'000};
    ::nanosleep(&pause, nullptr);
    return 0;
  }
  return s.what == "short" ? kShort : s.error;
}

std::string identity(const std::string& path) {
  struct stat found {};
  return ::fstatat(AT_FDCWD, path.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 ? std::to_string(found.st_ino)
                                                                             : "0";
}

// A name for what will lose its own: its contents until the folder is on the disk.
std::string keep(const std::string& path) {
  static int number = 0;
  const std::string name = fmt::format("{}/{}-{}", settings().kept, ::getpid(), ++number);
  return ::syscall(SYS_linkat, AT_FDCWD, path.c_str(), AT_FDCWD, name.c_str(), 0) == 0 ? name : "-";
}

// Runs a call that may fail: the fault, or the call and what the log has to have of it.
template <class F>
auto tried(Call call, const std::string& path, F f) -> decltype(f()) {
  using Result = decltype(f());
  const int injected = verdict(call, path);
  if (injected > 0) {
    errno = injected;
    if constexpr (std::is_pointer_v<Result>)
      return call == Call::map ? reinterpret_cast<Result>(MAP_FAILED) : nullptr;
    else
      return static_cast<Result>(-1);
  }
  return f();
}

template <class F>
int opened(const std::string& path, int flags, F f) {
  const std::lock_guard guard(order());
  const bool made = power() && counts(path) && (flags & O_CREAT) && identity(path) == "0";
  const int fd = tried(Call::open, path, f);
  if (made && fd >= 0) note(fmt::format("make {} {}", identity(path), path));
  if (power() && fd >= 0 && (flags & O_TRUNC) && counts(path)) note(fmt::format("cut {} 0", identity(path)));
  return fd;
}

template <class F>
ssize_t written(int fd, std::size_t size, off_t at, F f) {  // at: -1 where the file stands
  const std::string path = path_of(fd);
  const int injected = verdict(Call::write, path);
  if (injected > 0) return refused(injected);
  const std::lock_guard guard(order());
  const ssize_t n = f(injected == kShort && size > 1 ? size / 2 : size);
  if (power() && n > 0 && counts(path))
    note(fmt::format("write {} {} {}", identity(path), at < 0 ? ::lseek(fd, 0, SEEK_CUR) - n : at, n));
  return n;
}

template <class F>
int synced(int fd, F f) {
  const std::string path = path_of(fd);
  const int injected = verdict(Call::sync, path);
  if (injected > 0) return refused(injected);
  static long done = 0;
  const std::lock_guard guard(order());
  if (settings().lie > 0 && counts(path) && ++done >= settings().lie) return 0;
  const int result = f();
  if (power() && result == 0 && counts(path)) note(fmt::format("synced {} {}", identity(path), path));
  return result;
}

template <class F>
int renamed(const std::string& from, const std::string& to, F f) {
  const std::lock_guard guard(order());
  const bool counted = power() && counts(to);
  const std::string before = counted && identity(to) != "0" ? keep(to) : "-";
  const int result = tried(Call::rename, counts(to) ? to : from, f);
  if (counted && result == 0) note(fmt::format("rename {}\t{}\t{}", from, to, before));
  return result;
}

template <class F>
int removed(const std::string& path, F f) {
  const std::lock_guard guard(order());
  const std::string before = power() && counts(path) ? keep(path) : "-";
  const int result = tried(Call::remove, path, f);
  if (power() && counts(path) && result == 0) note(fmt::format("remove {}\t{}", path, before));
  return result;
}

template <class F>
int made(const std::string& path, F f) {
  const std::lock_guard guard(order());
  const int result = tried(Call::mkdir, path, f);
  if (power() && result == 0 && counts(path)) note(fmt::format("make 0 {}", path));
  return result;
}

int flags_of(const char* mode) { return *mode == 'r' ? 0 : *mode == 'w' ? O_CREAT | O_TRUNC : O_CREAT; }

}  // namespace

extern "C" {
// NOLINTBEGIN(readability-identifier-naming, cert-dcl50-cpp, google-runtime-int): the C library's own names and types
#define OPEN(name)                                                                                \
  int name(const char* path, int flags, ...) {                                                    \
    va_list rest;                                                                                 \
    va_start(rest, flags);                                                                        \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;               \
    va_end(rest);                                                                                 \
    return opened(path_at(AT_FDCWD, path), flags, [&] { return REAL(name)(path, flags, mode); }); \
  }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                                                    \
  int name(int folder, const char* path, int flags, ...) {                                              \
    va_list rest;                                                                                       \
    va_start(rest, flags);                                                                              \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;                     \
    va_end(rest);                                                                                       \
    return opened(path_at(folder, path), flags, [&] { return REAL(name)(folder, path, flags, mode); }); \
  }
OPENAT(openat)
OPENAT(openat64)
#define MKOSTEMP(name)                                                                                  \
  int name(char* path, int flags) {                                                                     \
    const std::lock_guard guard(order());                                                               \
    const int fd = tried(Call::open, path_at(AT_FDCWD, path), [&] { return REAL(name)(path, flags); }); \
    if (power() && fd >= 0 && counts(path_of(fd)))                                                      \
      note(fmt::format("make {} {}", identity(path_of(fd)), path_of(fd)));                              \
    return fd;                                                                                          \
  }
MKOSTEMP(mkostemp)
MKOSTEMP(mkostemp64)
#define FOPEN(name)                                                                              \
  FILE* name(const char* path, const char* mode) {                                               \
    const std::string full = path_at(AT_FDCWD, path);                                            \
    const bool is_new = power() && counts(full) && flags_of(mode) != 0 && identity(full) == "0"; \
    const std::lock_guard guard(order());                                                        \
    FILE* const file = tried(Call::open, full, [&] { return REAL(name)(path, mode); });          \
    if (is_new && file) note(fmt::format("make {} {}", identity(full), full));                   \
    return file;                                                                                 \
  }
FOPEN(fopen)
FOPEN(fopen64)

ssize_t read(int fd, void* to, size_t size) {
  const int injected = verdict(Call::read, path_of(fd));
  if (injected > 0) return refused(injected);
  return REAL(read)(fd, to, injected == kShort && size > 1 ? size / 2 : size);
}
ssize_t write(int fd, const void* from, size_t size) {
  return written(fd, size, -1, [&](size_t n) { return REAL(write)(fd, from, n); });
}
ssize_t writev(int fd, const iovec* parts, int number) {
  return written(fd, 1, -1, [&](size_t) { return REAL(writev)(fd, parts, number); });
}
#define PWRITE(name, offset_type)                                                        \
  ssize_t name(int fd, const void* from, size_t size, offset_type at) {                  \
    return written(fd, size, at, [&](size_t n) { return REAL(name)(fd, from, n, at); }); \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
int fsync(int fd) {
  return synced(fd, [&] { return REAL(fsync)(fd); });
}
int fdatasync(int fd) {
  return synced(fd, [&] { return REAL(fdatasync)(fd); });
}

int rename(const char* from, const char* to) noexcept {
  return renamed(path_at(AT_FDCWD, from), path_at(AT_FDCWD, to), [&] { return REAL(rename)(from, to); });
}
int renameat(int a, const char* from, int b, const char* to) noexcept {
  return renamed(path_at(a, from), path_at(b, to), [&] { return REAL(renameat)(a, from, b, to); });
}
int unlink(const char* path) noexcept {
  return removed(path_at(AT_FDCWD, path), [&] { return REAL(unlink)(path); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  return removed(path_at(folder, path), [&] { return REAL(unlinkat)(folder, path, flags); });
}
int remove(const char* path) noexcept {
  return removed(path_at(AT_FDCWD, path), [&] { return REAL(remove)(path); });
}
int rmdir(const char* path) noexcept {
  return removed(path_at(AT_FDCWD, path), [&] { return REAL(rmdir)(path); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  return made(path_at(AT_FDCWD, path), [&] { return REAL(mkdir)(path, mode); });
}
int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  return made(path_at(folder, path), [&] { return REAL(mkdirat)(folder, path, mode); });
}
int close(int fd) {
  const int injected = verdict(Call::close, path_of(fd));
  const int result = REAL(close)(fd);  // what fails to close is closed all the same
  return injected > 0 ? refused(injected) : result;
}
int link(const char* from, const char* to) noexcept {
  return tried(Call::link, path_at(AT_FDCWD, to), [&] { return REAL(link)(from, to); });
}
int symlink(const char* from, const char* to) noexcept {
  return tried(Call::link, path_at(AT_FDCWD, to), [&] { return REAL(symlink)(from, to); });
}
int ftruncate(int fd, off_t size) noexcept {
  const std::lock_guard guard(order());
  const int result = tried(Call::truncate, path_of(fd), [&] { return REAL(ftruncate)(fd, size); });
  if (power() && result == 0 && counts(path_of(fd)))
    note(fmt::format("cut {} {}", identity(path_of(fd)), size));
  return result;
}
int ftruncate64(int fd, off64_t size) noexcept { return ftruncate(fd, size); }
int truncate(const char* path, off_t size) noexcept {
  return tried(Call::truncate, path_at(AT_FDCWD, path), [&] { return REAL(truncate)(path, size); });
}
int fallocate(int fd, int mode, off_t at, off_t size) {
  return tried(Call::truncate, path_of(fd), [&] { return REAL(fallocate)(fd, mode, at, size); });
}
int posix_fallocate(int fd, off_t at, off_t size) {
  const int injected = verdict(Call::truncate, path_of(fd));
  return injected > 0 ? injected : REAL(posix_fallocate)(fd, at, size);
}
#define MMAP(name, offset_type)                                                                       \
  void* name(void* at, size_t size, int protection, int flags, int fd, offset_type offset) noexcept { \
    return tried(Call::map, path_of(fd),                                                              \
                 [&] { return REAL(name)(at, size, protection, flags, fd, offset); });                \
  }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)
DIR* opendir(const char* path) {
  return tried(Call::list, path_at(AT_FDCWD, path), [&] { return REAL(opendir)(path); });
}
DIR* fdopendir(int fd) {
  return tried(Call::list, path_of(fd), [&] { return REAL(fdopendir)(fd); });
}
int fchmod(int fd, mode_t mode) noexcept {
  return tried(Call::mode, path_of(fd), [&] { return REAL(fchmod)(fd, mode); });
}
int fchmodat(int folder, const char* path, mode_t mode, int flags) noexcept {
  return tried(Call::mode, path_at(folder, path), [&] { return REAL(fchmodat)(folder, path, mode, flags); });
}
ssize_t sendfile(int to, int from, off_t* at, size_t size) noexcept {
  using Sendfile = ssize_t(int, int, off_t*, size_t);
  return tried(Call::copy, path_of(to), [&] { return (*real<Sendfile>("sendfile"))(to, from, at, size); });
}
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"  // there is a struct of this name
int flock(int fd, int operation) noexcept {
#pragma GCC diagnostic pop
  using Flock = int(int, int);
  return tried(Call::lock, path_of(fd), [&] { return (*real<Flock>("flock"))(fd, operation); });
}
// NOLINTEND(readability-identifier-naming, cert-dcl50-cpp, google-runtime-int)
}
