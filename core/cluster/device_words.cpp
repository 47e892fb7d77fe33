#include "core/cluster/device_words.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <set>
#include <string>

#include "core/base/words.hpp"

namespace sextant {

namespace {

std::set<std::string> words_of(std::string_view text) {
  std::set<std::string> out;
  std::string word;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      continue;
    }
    if (!word.empty()) out.insert(word);
    word.clear();
  }
  if (!word.empty()) out.insert(word);
  return out;
}

// "80GB" among the words of a name.
std::string memory_word(const std::set<std::string>& names) {
  for (const std::string& w : names)
    if (w.size() > 2 && w.ends_with("GB") && std::isdigit(static_cast<unsigned char>(w.front())) != 0)
      return w;
  return "";
}

}  // namespace

bool names_product(std::string_view words) {
  for (;;) {
    const std::string_view word = words.substr(0, words.find_first_of("-_ "));
    const std::size_t letters = std::min(word.find_first_of("0123456789"), word.size());
    const bool capitals = std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(letters),
                                      [](unsigned char c) { return std::isupper(c) != 0; });
    // "H100", "GB200", "L40S", "MI300X"; the numbers of "RTX 4090" stand alone.
    if (letters < word.size() && letters <= 2 && capitals && word.size() <= 7 && word != "TF32") return true;
    constexpr std::array<std::string_view, 8> kLines = {"Tesla",  "GeForce", "RTX", "GTX",
                                                        "Quadro", "TITAN",   "DGX", "HGX"};
    if (std::ranges::find(kLines, word) == kLines.end() || word.size() == words.size()) return false;
    words.remove_prefix(word.size() + 1);
  }
}

namespace {

// The digits of the first word that begins with `begins` and goes on with them to its end, or to "g" or "gb": "80" of
// "a100-80gb", "72" of "gb200-nvl72" with "nvl".
std::string number_in(std::string_view name, std::string_view begins) {
  for (const std::string& word : words_of(name)) {
    if (!word.starts_with(begins)) continue;
    const std::string rest = word.substr(begins.size());
    const std::size_t end = std::min(rest.find_first_not_of("0123456789"), rest.size());
    const std::string unit = rest.substr(end);
    if (end > 0 && (unit.empty() || unit == "G" || unit == "GB")) return rest.substr(0, end);
  }
  return "";
}

}  // namespace

bool same_product(std::string_view a, std::string_view b) {
  for (const char* begins : {"", "NVL"}) {
    const std::string one = number_in(a, begins), other = number_in(b, begins);
    if (!one.empty() && !other.empty() && one != other) return false;
  }
  struct Product {
    std::string letters, digits, behind;
  };
  const auto product = [](std::string_view name) {
    Product p;
    for (const char c : name.substr(0, name.find_first_of("-_ "))) {
      const auto u = static_cast<unsigned char>(c);
      std::string& part = std::isdigit(u) != 0 ? p.digits : p.digits.empty() ? p.letters : p.behind;
      part += static_cast<char>(std::tolower(u));
    }
    return p;
  };
  const Product x = product(a), y = product(b);
  if (x.letters != y.letters || x.behind != y.behind) return false;
  // Products of their own, though a digit would make a preset's of them.
  constexpr std::array kShort = {"a10", "h20", "b20", "b30"};
  for (const Product* p : {&x, &y})
    if (x.digits != y.digits && std::ranges::find(kShort, p->letters + p->digits) != kShort.end())
      return false;
  // A digit that was left out or typed twice.
  return x.digits == y.digits || x.digits.starts_with(y.digits) || y.digits.starts_with(x.digits);
}

NearestDevice nearest_device(std::string_view product) {
  // Without what makers and lines are called, by the first word that is left.
  std::string name = plain_word(product);
  for (const std::string_view word : {"nvidia", "geforce", "quadro", "tesla", "rtx", "gtx", "dgx", "hgx"})
    if (const std::size_t at = name.find(word); at != std::string::npos) name.erase(at, word.size());
  struct Line {
    std::string_view begins;
    NearestDevice nearest;
  };
  constexpr NearestDevice kHopper{"Hopper", "h100", true}, kAmpere{"Ampere", "a100-80gb", true},
      kAmpereCard{"Ampere", "a100-80gb", true, true}, kBlackwell{"Blackwell", "b200", true},
      kBlackwellCard{"Blackwell", "b200", true, true}, kVolta{"Volta", "v100-32gb", true},
      kAda{"Ada Lovelace", "a100-80gb", false, true}, kTuring{"Turing", "v100-32gb", false, true},
      kPascal{"Pascal", "v100-32gb"}, kOther{"another maker", "h100"};
  // Longer beginnings first where one begins another.
  constexpr std::array kLines = {Line{"gh", kHopper},        Line{"h1", kHopper},
                                 Line{"h2", kHopper},        Line{"h8", kHopper},
                                 Line{"gb", kBlackwell},     Line{"b1", kBlackwell},
                                 Line{"b2", kBlackwell},     Line{"b3", kBlackwell},
                                 Line{"50", kBlackwellCard}, Line{"pro6000", kBlackwellCard},
                                 Line{"l4", kAda},           Line{"l2", kAda},
                                 Line{"40", kAda},           Line{"6000ada", kAda},
                                 Line{"6000", kAda},         Line{"a1", kAmpereCard},
                                 Line{"a2", kAmpereCard},    Line{"a3", kAmpereCard},
                                 Line{"a4", kAmpereCard},    Line{"a5", kAmpereCard},
                                 Line{"a6", kAmpereCard},    Line{"a8", kAmpere},
                                 Line{"30", kAmpereCard},    Line{"v1", kVolta},
                                 Line{"titanv", kVolta},     Line{"t4", kTuring},
                                 Line{"20", kTuring},        Line{"titanrtx", kTuring},
                                 Line{"p1", kPascal},        Line{"p4", kPascal},
                                 Line{"10", kPascal},        Line{"mi", kOther},
                                 Line{"instinct", kOther},   Line{"gaudi", kOther},
                                 Line{"tpu", kOther},        Line{"trn", kOther},
                                 Line{"ascend", kOther},     Line{"910", kOther}};
  for (const Line& line : kLines)
    if (name.starts_with(line.begins)) return line.nearest;
  return {"", "h100"};
}

std::string_view gpus_of_machine(std::string_view name) {
  std::string plain = plain_word(name);
  if (plain.starts_with("standard")) plain.erase(0, 8);
  struct Machine {
    std::string_view name, gpus;
  };
  // Amazon EC2, Google Cloud, Azure, Oracle: their pages of instance types.
  constexpr std::array kMachines = {
      Machine{"p316xlarge", "8xv100-16gb"},     Machine{"p3dn24xlarge", "8xv100-32gb"},
      Machine{"p5en48xlarge", "8xh200"},        Machine{"p6b20048xlarge", "8xb200"},
      Machine{"p6b30048xlarge", "8xb300"},      Machine{"a2highgpu8g", "8xa100-40gb"},
      Machine{"a2ultragpu8g", "8xa100-80gb"},   Machine{"a3highgpu8g", "8xh100"},
      Machine{"a3megagpu8g", "8xh100"},         Machine{"a3ultragpu8g", "8xh200"},
      Machine{"a4highgpu8g", "8xb200"},         Machine{"nd96asrv4", "8xa100-40gb"},
      Machine{"nd96amsra100v4", "8xa100-80gb"}, Machine{"nd96amsrv4", "8xa100-80gb"},
      Machine{"nda100v4", "8xa100-40gb"},       Machine{"ndma100v4", "8xa100-80gb"},
      Machine{"nd96isrh100v5", "8xh100"},       Machine{"ndh100v5", "8xh100"},
      Machine{"nd96isrh200v5", "8xh200"},       Machine{"ndh200v5", "8xh200"},
      Machine{"bmgpua100v28", "8xa100-80gb"},   Machine{"bmgpuh1008", "8xh100"},
      Machine{"bmgpuh2008", "8xh200"},          Machine{"bmgpub2008", "8xb200"}};
  for (const Machine& machine : kMachines)
    if (plain == machine.name) return machine.gpus;
  return "";
}

bool names_device(std::string_view words, const DeviceSpec& device) {
  const auto machine = words_of(words), preset = words_of(device.name);
  const bool gpu = machine.contains("NVIDIA") || machine.contains("TESLA");
  if (device.generation == "cpu") return !words.empty() && !gpu;
  const std::string model = device.name.substr(0, device.name.find('-'));
  if (!machine.contains(*words_of(model).begin())) return false;
  for (const char* form : {"PCIE", "NVL"})
    if (machine.contains(form) != preset.contains(form)) return false;
  const std::string has = memory_word(machine), needs = memory_word(preset);
  return has.empty() || needs.empty() || has == needs;
}

}  // namespace sextant
