#include "tools/output/profile_text.hpp"

#include <ostream>
#include <string>
#include <variant>

#include <fmt/format.h>

#include "core/timeline/measurement_name.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {
namespace {

std::string decimals(double value, int digits) {
  return value > 0 ? fmt::format("{:.{}f}", value, digits) : "";
}
// Half of the spread between the quartiles in percent of the median.
std::string quartiles(double spread, double median) {
  return median > 0 ? decimals(50 * spread / median, 0) : "";
}
std::string count(int n) { return n > 0 ? fmt::format("{}", n) : ""; }

std::string size_text(Bytes bytes) {
  constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20;
  return bytes.v % kMiB == 0   ? fmt::format("{}MiB", bytes.v / kMiB)
         : bytes.v % kKiB == 0 ? fmt::format("{}KiB", bytes.v / kKiB)
                               : fmt::format("{}B", bytes.v);
}

enum class RankCount : std::uint8_t { shown, left_out };

// A measurement's name, as short as a terminal wants it: "d2h 64MiB", "gemm bf16 8192^3".
std::string short_name(const std::string& name, RankCount count) {
  const Measured of = parse_measurement(name);
  if (const auto* p = std::get_if<SquareGemm>(&of))
    return fmt::format(
        "gemm {} {}^3{}", sextant::name(p->format), p->extent,
        p->ranks > 1 && count == RankCount::shown ? fmt::format(" on {} ranks", p->ranks) : "");
  if (const auto* c = std::get_if<CopyWithin>(&of)) return "copy d2d " + size_text(c->bytes);
  if (const auto* c = std::get_if<CopyWork>(&of))
    return fmt::format("copy {} {}", c->direction == CopyDirection::device_to_host ? "d2h" : "h2d",
                       size_text(c->bytes));
  if (const auto* e = std::get_if<MeasuredCollective>(&of)) {
    const std::string text = measurement_name(of), bytes = fmt::format("{}B", e->bytes.v);
    return std::string(text).replace(text.find(bytes), bytes.size(), size_text(e->bytes));
  }
  return name;
}
std::string rate_text(const MachineMeasurement& m) {
  if (m.rate_GBps > 0) return fmt::format("{:.1f} GB/s", m.rate_GBps);
  return m.rate_TFLOPS > 0 ? fmt::format("{:.{}f} TFLOP/s", m.rate_TFLOPS, m.rate_TFLOPS < 10 ? 2 : 0) : "";
}

}  // namespace

void print_facts(Session& session, const MachineFacts& facts) {
  auto& out = session.terminal.out;
  Table table({{"measured", Align::left},
               {"concurrent with", Align::left},
               {"median us", Align::right},
               {"quartiles +- %", Align::right, 1},
               {"rate", Align::right},
               {"x alone", Align::right},
               {"outliers", Align::right, 2}});
  for (const MachineMeasurement& m : facts.measurements)
    table.add_row({short_name(m.what, RankCount::shown), short_name(m.concurrent_with, RankCount::left_out),
                   fmt::format("{:.{}f}", m.median_us, m.median_us < 1 ? 3 : 1),
                   quartiles(m.spread_us, m.median_us), rate_text(m),
                   m.concurrent_with.empty() ? "" : decimals(facts.lengthening(m.what, m.concurrent_with), 2),
                   count(m.outliers)});
  if (!facts.measurements.empty()) out << table.render(session.terminal, session.common.wide) << '\n';
  if (facts.conditions.empty()) return;
  Table states({{"at", Align::left},
                {"s", Align::right},
                {"SM MHz", Align::right},
                {"memory MHz", Align::right, 1},
                {"deg C", Align::right},
                {"W", Align::right},
                {"limited by", Align::left}});
  for (const MachineCondition& c : facts.conditions)
    states.add_row({c.at, fmt::format("{:.1f}", c.time_s), decimals(c.sm_clock_MHz, 0),
                    decimals(c.memory_clock_MHz, 0), decimals(c.temperature_C, 0), decimals(c.power_W, 0),
                    c.limited_by});
  out << states.render(session.terminal, session.common.wide) << '\n';
}

void print_works(Session& session, const WorkProfile& profile) {
  Table table({{"operation", Align::left},
               {"mean us", Align::right},
               {"median us", Align::right},
               {"quartiles +- %", Align::right, 1},
               {"alone us", Align::right, 3},
               {"samples", Align::right, 2},
               {"outliers", Align::right, 4}});
  for (const auto& [key, w] : profile.works)
    table.add_row({key, fmt::format("{:.1f}", w.mean_us), fmt::format("{:.1f}", w.median_us),
                   quartiles(w.spread_us, w.median_us), decimals(w.alone_us, 1), fmt::format("{}", w.samples),
                   count(w.outliers)});
  session.terminal.out << table.render(session.terminal, session.common.wide);
}

}  // namespace sextant
