#include "core/base/mapped_range.hpp"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

// What is mapped, for a signal handler: it may take no lock, so that nodes are never freed, and one without a size is free.
struct Node {
  std::atomic<std::uintptr_t> begin = 0;
  std::atomic<std::size_t> size = 0;
  std::string path;
  Node* next = nullptr;
};
std::atomic<Node*> newest = nullptr;
std::mutex changing;

void say(const char* text) { (void)!::write(STDERR_FILENO, text, std::strlen(text)); }

void on_bus_error(int, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const Node* n = newest; n; n = n->next) {
    const std::uintptr_t begin = n->begin;
    if (at < begin || at - begin >= n->size) continue;
    say("sextant: ");
    say(n->path.c_str());
    say(": can no longer be read: the disk fails, or the file was cut while it was in use\n");
    ::_exit(static_cast<int>(ExitCode::bad_input));
  }
  // Not ours: what happens without us.
  (void)std::signal(SIGBUS, SIG_DFL);
  (void)::raise(SIGBUS);
}

void handle_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

void watch(const std::byte* data, std::size_t size, const std::filesystem::path& path) {
  const std::lock_guard lock(changing);
  Node* node = newest;
  while (node && node->size != 0) node = node->next;
  const bool fresh = !node;
  if (fresh) node = new Node;  // kept: see above
  node->path = path.string();
  node->begin = reinterpret_cast<std::uintptr_t>(data);
  node->size = size;
  if (!fresh) return;
  node->next = newest;
  if (!node->next) handle_bus_errors();
  newest = node;
}

void forget(const std::byte* data) {
  const std::lock_guard lock(changing);
  for (Node* n = newest; n; n = n->next)
    if (n->begin == reinterpret_cast<std::uintptr_t>(data)) n->size = 0;
}

}  // namespace

void let_go(std::span<const std::byte> mapped) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(mapped.data());
  const std::uintptr_t begin = (at + page - 1) / page * page, end = (at + mapped.size()) / page * page;
  if (begin >= end) return;
  // madvise() writes nothing here; its argument is not const for other kinds of advice.
  auto* const first = const_cast<std::byte*>(mapped.data() + (begin - at));
  (void)::madvise(first, end - begin, MADV_DONTNEED);
}

MappedRange::MappedRange(int fd, std::size_t size, const std::filesystem::path& path) {
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED) return;
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
  watch(data_, size_, path);
}

MappedRange::~MappedRange() {
  if (!data_) return;
  forget(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedRange::MappedRange(MappedRange&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedRange& MappedRange::operator=(MappedRange&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace sextant
