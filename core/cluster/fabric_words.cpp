#include "core/cluster/fabric_words.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <initializer_list>
#include <vector>

#include "core/base/named_words.hpp"

namespace sextant {

namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

// "NVLink3 NVSwitch; 8x HDR200" is "8x HDR200"; all of it where no part is of the network alone.
std::string between_nodes(std::string_view text) {
  const std::string_view all = text;
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(';'), text.size());
    if (const std::string_view part = text.substr(0, end); !names(part, "nvlink", Ends::anywhere))
      out += std::string(part) + ' ';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out.empty() ? std::string(all) : out;
}

std::vector<std::string> tokens(std::string_view text) {
  std::vector<std::string> out;
  bool beside_number = false;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text.substr(i).starts_with("\u00d7")) {
      out.emplace_back("x");
      i += 2;
      continue;
    }
    const bool number = is_digit(text[i]);
    if (number)
      while (end < text.size() &&
             (is_digit(text[end]) || (text[end] == '.' && end + 1 < text.size() && is_digit(text[end + 1]))))
        ++end;
    else if (is_letter(text[i]))
      while (end < text.size() && is_letter(text[end])) ++end;
    std::string token(text.substr(i, end - i));
    i = end;
    // The x of "4xHDR", but not that of "8XDR".
    if (beside_number && token.size() > 1 && (token[0] == 'x' || token[0] == 'X') && folded(token) != "xdr") {
      out.emplace_back("x");
      token.erase(0, 1);
    }
    beside_number = number;
    if (token != " " && token != "-" && token != "_") out.push_back(std::move(token));
  }
  return out;
}

double number(const std::string& token) {
  double x = 0;
  std::from_chars(token.data(), token.data() + token.size(), x);
  return x;
}

bool any_of(const std::string& token, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), folded(token)) != words.end();
}

// Gb/s of "100 Gb/s", "100 GbE", "100G", "25 GB/s"; 0 where no unit follows.
double factor_of_unit(const std::vector<std::string>& t, std::size_t at) {
  if (at >= t.size()) return 0;
  const bool each_second = at + 2 < t.size() && t[at + 1] == "/" && any_of(t[at + 2], {"s", "sec"});
  if (t[at] == "GB" && each_second) return 8;
  if (t[at] == "GBps") return 8;
  if (any_of(t[at], {"gb", "gbe", "gbps", "gbit", "gbits", "gigabit", "g", "ge"})) return 1;
  return 0;
}

}  // namespace

std::string fabric_words(std::string_view text) {
  std::string out;
  for (const std::string& t : tokens(between_nodes(text))) out += (out.empty() ? "" : " ") + folded(t);
  return out;
}

FabricPorts fabric_ports(std::string_view text) {
  constexpr double kMostPorts = 64, kLeastGbps = 10;
  constexpr std::size_t kWords = 4;  // between count and rate: "4x Omni-Path 100"
  const std::vector<std::string> t = tokens(between_nodes(text));
  FabricPorts out;
  for (std::size_t i = 0; i < t.size(); ++i) {
    const double n = number(t[i]);
    // "4 x 200", "8 x hdr", "4 x omni - path 100".
    if (n >= 1 && n <= kMostPorts && i + 2 < t.size() && any_of(t[i + 1], {"x"})) {
      out.count = static_cast<int>(n);
      for (std::size_t k = i + 2; k < t.size() && k < i + 2 + kWords; ++k) {
        if (any_of(t[k], {";", ",", "(", "x"})) break;
        if (const double rate = number(t[k]); rate >= kLeastGbps)
          return {out.count, rate * std::max(1.0, factor_of_unit(t, k + 1))};
      }
      continue;
    }
    // "hdr 200", and "hdr 200 x 4".
    if (any_of(t[i], {"edr", "hdr", "ndr", "xdr"}) && i + 1 < t.size() && number(t[i + 1]) >= 100) {
      out.gbps = number(t[i + 1]);
      if (i + 3 < t.size() && any_of(t[i + 2], {"x"}))
        if (const double ports = number(t[i + 3]); ports >= 1 && ports <= kMostPorts)
          out.count = static_cast<int>(ports);
      return out;
    }
    if (const double unit = factor_of_unit(t, i + 1); n >= 1 && unit > 0) {
      out.gbps = n * unit;
      out.per_gpu = fabric_words(text).find("per gpu") != std::string::npos;
      if (!out.per_gpu) out.count = std::max(out.count, 1);
      return out;
    }
  }
  return out;
}

}  // namespace sextant
