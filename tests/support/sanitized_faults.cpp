// A fault of the kind that is named, which the sanitizers of this build must report: address, undefined, thread. Behind the first
// two the program does not go on.
#include <cstdio>
#include <memory>
#include <string_view>
#include <thread>

int main(int argc, char** argv) {
  const std::string_view kind = argc == 2 ? argv[1] : "";
  if (kind == "address") {
    auto freed = std::make_unique<int>(argc);
    volatile int* left = freed.get();
    freed.reset();
    *left = 1;
  } else if (kind == "undefined") {
    volatile int most = 2147483647;
    most = most + argc;
  } else if (kind == "thread") {
    volatile int shared = 0;
    {
      const std::jthread other([&] { shared = 1; });
      shared = 2;
    }
    return 0;
  }
  std::puts("it goes on");
}
