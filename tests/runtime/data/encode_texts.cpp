// Prints the ids of texts, for comparisons with the libraries that define them: encode_texts TOKENIZER reads a JSON string a line
// and prints a JSON array a line. What a tokenizer file is refused for goes to stderr, exit code 3.
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "runtime/data/tokenizer.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: encode_texts TOKENIZER < texts.jsonl\n";
    return 2;
  }
  try {
    const sextant::Tokenizer tokenizer = sextant::load_tokenizer(argv[1]);
    for (std::string line; std::getline(std::cin, line);)
      std::cout << nlohmann::json(tokenizer.encode(nlohmann::json::parse(line).get<std::string>())).dump()
                << "\n";
  } catch (const sextant::ConfigError& e) {
    std::cerr << e.what() << "\n";
    return 3;
  }
}
