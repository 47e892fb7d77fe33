// Writes the manual pages while building: write_man_pages FOLDER VERSION. Their date is SOURCE_DATE_EPOCH, or today.
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "tools/verbs/man_pages.hpp"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: write_man_pages FOLDER VERSION\n";
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  const char* epoch = std::getenv("SOURCE_DATE_EPOCH");
  const std::time_t now =
      epoch ? static_cast<std::time_t>(std::strtoll(epoch, nullptr, 10)) : std::time(nullptr);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(now));
  for (const auto& page : sextant::man_pages(sextant::CommandLine(), argv[2], date)) {
    std::ofstream file(folder / page.file);
    file << page.text;
    if (!file.flush()) {
      std::cerr << "write_man_pages: " << (folder / page.file).string() << " cannot be written\n";
      return 1;
    }
  }
  return 0;
}
