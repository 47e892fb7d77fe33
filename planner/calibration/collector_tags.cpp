#include "planner/calibration/collector_tags.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

// What a line begins with, and who wrote it; empty: nobody is named.
struct Prefix {
  std::size_t length = 0;
  std::string_view name;
};

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool of_a_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
}

// Whether `text` has the form of `form`, in which 0 is any digit and a any letter.
bool looks_like(std::string_view text, std::string_view form) {
  if (text.size() < form.size()) return false;
  for (std::size_t i = 0; i < form.size(); ++i) {
    const bool letter = std::isalpha(static_cast<unsigned char>(text[i])) != 0;
    if (form[i] == '0' ? !is_digit(text[i]) : form[i] == 'a' ? !letter : text[i] != form[i]) return false;
  }
  return true;
}

// "2026-02-03T04:05:06.123456789Z text" or with an offset.
std::optional<Prefix> time_of(std::string_view line) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00";
  if (!looks_like(line, kForm)) return std::nullopt;
  std::size_t end = kForm.size();
  while (end < line.size() &&
         (is_digit(line[end]) || std::string_view(".,:+-Z").find(line[end]) != std::string_view::npos))
    ++end;
  if (end < line.size() && line[end] != ' ' && line[end] != '\t') return std::nullopt;
  return Prefix{std::min(end + 1, line.size()), ""};
}

// "[pod/trainer-0/pytorch] text"
std::optional<Prefix> pod_of(std::string_view line) {
  if (!line.starts_with("[pod/")) return std::nullopt;
  const std::size_t end = line.find(']');
  if (end == std::string_view::npos) return std::nullopt;
  return Prefix{std::min(end + (line.substr(end).starts_with("] ") ? 2 : 1), line.size()),
                line.substr(1, end - 1)};
}

// "trainer-0  | text", of docker compose.
std::optional<Prefix> service_of(std::string_view line) {
  std::size_t end = 0;
  while (end < line.size() && of_a_name(line[end])) ++end;
  const std::size_t bar = std::min(line.find_first_not_of(' ', end), line.size());
  if (end == 0 || bar == end || !line.substr(bar).starts_with("|")) return std::nullopt;
  return Prefix{std::min(bar + (line.substr(bar).starts_with("| ") ? 2 : 1), line.size()),
                line.substr(0, end)};
}

// "(RayTrainWorker pid=1234, ip=10.0.0.2) text"
std::optional<Prefix> worker_of(std::string_view line) {
  const std::size_t end = line.find(')');
  if (!line.starts_with('(') || end == std::string_view::npos ||
      line.substr(0, end).find("pid=") == std::string_view::npos)
    return std::nullopt;
  return Prefix{std::min(end + (line.substr(end).starts_with(") ") ? 2 : 1), line.size()),
                line.substr(1, end - 1)};
}

// "Feb 03 04:05:06 node-7 python[1234]: text"
std::optional<Prefix> unit_of(std::string_view line) {
  constexpr std::string_view kForm = "aaa 00 00:00:00 ";
  if (!looks_like(line, kForm) && !looks_like(line, "aaa  0 00:00:00 ")) return std::nullopt;
  const std::size_t host = std::min(line.find(' ', kForm.size()), line.size()), end = line.find(": ", host);
  if (end == std::string_view::npos || line.substr(host, end - host).find(' ', 1) != std::string_view::npos)
    return std::nullopt;
  return Prefix{end + 2, line.substr(kForm.size(), host - kForm.size())};
}

// "node-7: text", of pdsh and of srun --label by name: a word that ends in digits.
std::optional<Prefix> host_of(std::string_view line) {
  std::size_t end = 0;
  while (end < line.size() && of_a_name(line[end])) ++end;
  if (end < 2 || !line.substr(end).starts_with(": ") || !is_digit(line[end - 1]) ||
      std::isalpha(static_cast<unsigned char>(line[0])) == 0)
    return std::nullopt;
  return Prefix{end + 2, line.substr(0, end)};
}

using Reader = std::optional<Prefix> (*)(std::string_view);
constexpr std::array<Reader, 6> kReaders = {time_of, pod_of, service_of, worker_of, unit_of, host_of};

// Numbers in names count as numbers: trainer-2 before trainer-10.
bool before(std::string_view a, std::string_view b) {
  const auto number = [](std::string_view s) {
    std::size_t begin = s.size();
    while (begin > 0 && is_digit(s[begin - 1])) --begin;
    return whole_number(s.substr(begin)).value_or(-1);
  };
  return number(a) != number(b) ? number(a) < number(b) : a < b;
}

// The text without one kind of prefix; nothing where it has not that kind.
std::optional<std::string> without_tag(const std::string& text, Reader reader) {
  int lines = 0, with = 0;
  std::map<std::string_view, int, bool (*)(std::string_view, std::string_view)> names(before);
  each_line(text, [&](std::string_view line, int) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    ++lines;
    const auto prefix = reader(line);
    if (!prefix) return;
    ++with;
    if (!prefix->name.empty()) names.try_emplace(prefix->name);
  });
  constexpr std::size_t kMostNames = 4096;
  if (lines == 0 || with * 10 < lines * 9 || with == 0 || names.size() > kMostNames) return std::nullopt;
  for (int number = 0; auto& [name, its] : names) its = number++;
  std::string out;
  out.reserve(text.size());
  each_line(text, [&](std::string_view line, int) {
    if (const auto prefix = reader(line)) {
      if (names.size() > 1) {
        const auto known = names.find(prefix->name);
        out += fmt::format("[{}{}]: ", kMachineTag, known == names.end() ? std::ssize(names) : known->second);
      }
      line.remove_prefix(prefix->length);
    }
    out += line;
    out += '\n';
  });
  if (!text.ends_with('\n') && !out.empty()) out.pop_back();
  return out;
}

}  // namespace

std::string without_collector_tags(std::string text) {
  constexpr int kDeepest = 3;  // a pod, its time, a host
  for (int depth = 0; depth < kDeepest; ++depth) {
    bool taken = false;
    for (const Reader reader : kReaders)
      if (auto rest = without_tag(text, reader)) {
        text = *std::move(rest);
        taken = true;
        break;
      }
    if (!taken) break;
  }
  return text;
}

}  // namespace sextant
