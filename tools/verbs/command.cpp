#include "tools/verbs/command.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <ostream>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "tools/inputs/version.hpp"
#include "tools/verbs/help.hpp"

#ifndef SEXTANT_VERSION
#define SEXTANT_VERSION "unknown"
#endif

namespace sextant {

namespace {

std::vector<std::string> verb_names() {
  std::vector<std::string> names;
  for (const auto& verb : verbs()) names.push_back(verb.name);
  return names;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options())
    for (const auto& name : option->get_lnames()) flags.push_back("--" + name);
  return flags;
}

// What frameworks have an option for, and a verb has another way to say: without '-' and '_', and the option it needs.
struct Otherwise {
  std::string_view flag, option, how;
};
constexpr std::string_view kClusterOption = "--cluster, such as 8x8xh100: nodes x GPUs x device";
constexpr std::array kSaidOtherwise = {
    Otherwise{"gbs", "--global-batch", "--global-batch"},
    Otherwise{"batchsize", "--global-batch",
              "--global-batch, in sequences; a micro-batch is mbs1 of the plan key"},
    Otherwise{"seqlength", "--seq-len", "--seq-len"},
    Otherwise{"device", "--cluster", kClusterOption},
    Otherwise{"gpu", "--cluster", kClusterOption},
    Otherwise{"gpus", "--cluster", kClusterOption},
    Otherwise{"ngpus", "--cluster", kClusterOption},
    Otherwise{"nodes", "--cluster", kClusterOption},
    Otherwise{"nnodes", "--cluster", kClusterOption},
    Otherwise{"numnodes", "--cluster", kClusterOption},
    Otherwise{"seqlen", "--seq-len", "--seq-len"},
    Otherwise{"sequencelength", "--seq-len", "--seq-len"},
    Otherwise{"contextlength", "--seq-len", "--seq-len"},
    Otherwise{"maxseqlen", "--seq-len", "--seq-len"},
    Otherwise{"maxlength", "--seq-len", "--seq-len"},
    Otherwise{"context", "--seq-len", "--seq-len"},
    Otherwise{"globalbatchsize", "--global-batch", "--global-batch, in sequences"},
    Otherwise{"trainbatchsize", "--global-batch", "--global-batch, in sequences"},
    Otherwise{"hardware", "--cluster", kClusterOption},
    Otherwise{"machine", "--cluster", kClusterOption},
    Otherwise{"accelerator", "--cluster", kClusterOption},
    Otherwise{"gpuspernode", "--cluster", kClusterOption},
    Otherwise{"nprocpernode", "--cluster", kClusterOption},
    Otherwise{"worldsize", "--cluster", kClusterOption},
    Otherwise{"fabric", "--cluster", "--cluster 8x8xh100@FABRIC (sextant presets fabrics)"},
    Otherwise{"network", "--cluster", "--cluster 8x8xh100@FABRIC (sextant presets fabrics)"},
    Otherwise{"interconnect", "--cluster", "--cluster 8x8xh100@FABRIC (sextant presets fabrics)"},
    Otherwise{"params", "--model", "--model"},
    Otherwise{"modelsize", "--model", "--model"},
    Otherwise{"fp16", "--precision", "--precision"},
    Otherwise{"fp8", "--precision", "--precision"},
    Otherwise{"mixedprecision", "--precision", "--precision"},
    Otherwise{"config", "--from", "--from, for the file of another framework"},
    Otherwise{"pricepergpuhour", "--set", "--set device.price_usd_per_hour=2.5"},
    Otherwise{"framework", "--to", "--to, the framework that it is written for"},
    Otherwise{"framework", "--stack", "--stack"},
    Otherwise{"target", "--to", "--to, the framework that it is written for"},
    Otherwise{"format", "--to", "--to, the framework that it is written for"},
    Otherwise{"stack", "--to", "--to, the framework that it is written for"},
    Otherwise{"bf16", "--precision", "--precision"},
    Otherwise{"dtype", "--precision", "--precision"}};

// What they have an option for, and here is a field of the layout.
constexpr std::array<std::string_view, 22> kLayoutFlags = {"tp",
                                                           "pp",
                                                           "cp",
                                                           "dp",
                                                           "vp",
                                                           "vpp",
                                                           "sp",
                                                           "zero",
                                                           "zerostage",
                                                           "mbs",
                                                           "microbatch",
                                                           "microbatchsize",
                                                           "tensorparallel",
                                                           "tensormodelparallelsize",
                                                           "pipelinemodelparallelsize",
                                                           "contextparallelsize",
                                                           "tensorparallelsize",
                                                           "pipelineparallelsize",
                                                           "dataparallelsize",
                                                           "fsdp",
                                                           "recompute",
                                                           "sequenceparallel"};

// Empty: nothing that is known.
std::string said_otherwise(const std::string& flag, const CLI::App& app) {
  std::string plain;
  for (const char c : flag)
    if (c != '-' && c != '_') plain += c;
  const auto has = [&](std::string_view option) {
    return app.get_option_no_throw(std::string(option)) != nullptr;
  };
  std::vector<std::string> known;
  for (const Otherwise& other : kSaidOtherwise)
    if (has(other.option)) known.emplace_back(other.flag);
  // A slip in a long word of theirs; in a short one it makes another word.
  constexpr std::size_t kLongEnough = 8;
  const std::string meant = std::ranges::find(known, plain) != known.end() ? plain
                            : plain.size() >= kLongEnough && closest(flag, flags_of(app)).empty()
                                ? closest(plain, known)
                                : "";
  for (const Otherwise& other : kSaidOtherwise)
    if (meant == other.flag && has(other.option)) return fmt::format("did you mean {}?", other.how);
  if (std::ranges::find(kLayoutFlags, plain) == kLayoutFlags.end()) return "";
  if (has("--fix")) return "the search chooses it; --fix tp=8,pp=2 holds a part of the layout";
  return has("--plan") ? "it is a part of the layout: --plan tp8.pp2.z1.mbs1" : "";
}

// What the command-line library found wrong, in our words.
std::string explain_parse_error(const CLI::ParseError& error, const CLI::App& app) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    const auto extras = app.remaining();
    const std::string extra = extras.empty() ? "" : extras.front();
    const std::string flag = extra.substr(0, extra.find('='));
    if (!flag.starts_with("-")) {
      std::string hint;
      if (app.get_option_no_throw("--model")) hint = "\n  a model follows --model, a cluster --cluster";
      if (app.get_option_no_throw("--plan"))
        hint +=
            hint.empty() ? "\n  a plan key or plan file follows --plan" : ", a plan key or plan file --plan";
      return fmt::format("unexpected argument '{}'{}", extra, hint);
    }
    std::string hint = said_otherwise(flag, app);
    if (hint.empty())
      if (const std::string near = closest(flag, flags_of(app)); !near.empty())
        hint = fmt::format("did you mean {}?", near);
    return fmt::format("has no option {}{}{}", flag, hint.empty() ? "" : "\n  ", hint);
  }
  std::string text = error.what();
  if (const auto argument = dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    const std::string option = text.substr(0, text.find(':'));
    return text.find("missing") != std::string::npos || text.find("required") == 0 ||
                   argument->get_name() == "TypedAtLeast"
               ? fmt::format("{} needs a value", option)
               : fmt::format("{} is given more than once, or with too many values", option);
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error))
    return fmt::format("{} is missing", text.substr(0, text.find(' ')));
  return text;
}

void print_problems(Terminal& terminal, const std::string& where, const ConfigError& error) {
  constexpr std::size_t kShown = 20;
  const auto& problems = error.problems();
  std::string all;
  for (std::size_t i = 0; i < std::min(problems.size(), kShown); ++i) {
    Problem problem = problems[i];
    const std::string hint = std::exchange(problem.hint, "");
    std::string text = to_string(problem);
    if (text.ends_with(": ")) text.resize(text.size() - 2);
    all += error_text(terminal, where, text.empty() ? hint : text);
    if (!hint.empty() && !text.empty()) all += fmt::format("  {}\n", hint);
  }
  if (problems.size() > kShown) all += fmt::format("  ... and {} more\n", problems.size() - kShown);
  terminal.err << wrapped_message(terminal, all);
}

bool is_about_flags(const ConfigError& error) {
  return std::all_of(error.problems().begin(), error.problems().end(),
                     [](const Problem& p) { return p.file.starts_with("-"); });
}

// The library that starts threads for us (TBB) has the system's words, and no code.
bool lacks_resources(const std::exception& error) {
  if (const auto* of_system = dynamic_cast<const std::system_error*>(&error))
    return of_system->code() == std::errc::resource_unavailable_try_again ||
           of_system->code() == std::errc::not_enough_memory;
  const std::string_view what = error.what();
  return what.ends_with(std::strerror(EAGAIN)) || what.ends_with(std::strerror(ENOMEM));
}

// A full disk or a closed pipe shows only when the buffer is written.
ExitCode flushed(Terminal& terminal, ExitCode code) {
  terminal.out.flush();
  if (terminal.out) return code;
  print_error(terminal, "sextant",
              "the answer could not be written to standard output (is the disk full, or the pipe closed?)");
  return ExitCode::run_failed;
}

ExitCode unknown_verb(Terminal& terminal, const std::string& word) {
  const auto names = verb_names();
  const std::string near = closest(word, names);
  print_error(terminal, "sextant", fmt::format("there is no verb '{}'", word));
  if (!near.empty())
    terminal.err << "  did you mean 'sextant " << near << "'?\n";
  else
    terminal.err << fmt::format("  verbs: {}\n", fmt::join(names, ", "));
  return ExitCode::usage;
}

// Options of version 0.1 that have other names now, each with its verb: read until version 0.3, with a line on stderr.
struct FormerOption {
  std::string_view verb, former, now;
};
constexpr std::array kFormerOptions = {FormerOption{"run", "--products", "--gemms"}};

// With today's names in the place of former ones, and what to say of them.
std::vector<std::string> rename_former_options(std::string_view verb, std::vector<std::string>& arguments) {
  std::vector<std::string> told;
  for (const FormerOption& option : kFormerOptions)
    for (std::string& argument : arguments) {
      if (option.verb != verb || argument.substr(0, argument.find('=')) != option.former) continue;
      argument.replace(0, option.former.size(), option.now);
      told.push_back(
          fmt::format("{0} is read as {1}; the next version takes {1} alone", option.former, option.now));
    }
  return told;
}

ExitCode run_verb(CommandLine& line, std::size_t index, std::vector<std::string> arguments,
                  Terminal terminal) {
  const Verb& verb = verbs()[index];
  CLI::App& app = *line.apps[index];
  const std::string where = "sextant " + verb.name;
  std::vector<std::string> given = {"sextant", verb.name};
  given.insert(given.end(), arguments.begin(), arguments.end());
  std::vector<std::string> former = rename_former_options(verb.name, arguments);
  const std::string try_help = fmt::format("  try: {} --help\n", where);
  try {
    try {
      // The library would take the next option for the value of "--budget-s=".
      for (const auto& argument : arguments)
        if (argument.starts_with("--") && argument.find('=') == argument.size() - 1)
          throw UsageError(fmt::format("{} needs a value", argument.substr(0, argument.size() - 1)));
      std::reverse(arguments.begin(), arguments.end());  // the library takes them back to front
      app.parse(std::move(arguments));
    } catch (const CLI::CallForHelp&) {
      terminal.out << help_text(app, verb, terminal);
      return flushed(terminal, ExitCode::ok);
    } catch (const CLI::ParseError& error) {
      throw UsageError(explain_parse_error(error, app));
    }
    Session session{.terminal = terminal,
                    .common = line.common,
                    .arguments = std::move(given),
                    .former = std::move(former)};
    if (line.common.color != "auto")
      session.terminal.color = session.terminal.err_color = line.common.color == "always";
    return flushed(session.terminal, line.runs[index](session));
  } catch (const UsageError& error) {
    print_error(terminal, where, error.what(), try_help);
    return ExitCode::usage;
  } catch (const ConfigError& error) {
    print_problems(terminal, where, error);
    return is_about_flags(error) ? ExitCode::usage : ExitCode::bad_input;
  } catch (const BackendError& error) {
    print_error(terminal, where, error.what());
    return ExitCode::run_failed;
  } catch (const std::filesystem::filesystem_error& error) {  // of a folder that may not be entered, for one
    print_error(terminal, where, fmt::format("{}: {}", error.path1().string(), error.code().message()));
    return ExitCode::bad_input;
  } catch (const std::bad_alloc&) {
    print_error(terminal, where,
                "out of memory: this machine has no more, or ulimit -v lets a process have no more");
    return ExitCode::run_failed;
  } catch (const std::exception& error) {
    if (lacks_resources(error)) {
      print_error(
          terminal, where,
          fmt::format("the system gives this process no more threads or memory ({}): see ulimit -u and -v",
                      error.what()));
      return ExitCode::run_failed;
    }
    print_error(terminal, where, fmt::format("internal error: {}", error.what()),
                fmt::format("  this is a mistake in sextant; please report it with the command line and {}\n",
                            version_text()));
    return ExitCode::internal_error;
  }
}

}  // namespace

CommandLine::CommandLine() : app("", "sextant") {
  for (const auto& verb : verbs()) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.summary);
    sub->set_help_flag("-h,--help", "print this help and exit");
    runs.push_back(verb.define(*sub));
    add_common_options(*sub, common);
    apps.push_back(sub);
  }
}

ExitCode run_command(const std::vector<std::string>& arguments, Terminal terminal) {
  CommandLine line;
  const std::string word = arguments.empty() ? "" : arguments.front();
  if (word == "--version" || word == "-V") {
    terminal.out << version_text() << '\n';
    return flushed(terminal, ExitCode::ok);
  }
  if (word.empty() || word == "--help" || word == "-h" || (word == "help" && arguments.size() == 1)) {
    (word.empty() ? terminal.err : terminal.out) << overview_text(terminal);
    return flushed(terminal, word.empty() ? ExitCode::usage : ExitCode::ok);
  }
  if (word == "help") return run_command({arguments[1], "--help"}, terminal);
  if (word.starts_with("-")) {
    print_error(terminal, "sextant", fmt::format("there is no option {} before a verb", word));
    terminal.err << "  options follow the verb: sextant plan " << word << " ...; try: sextant --help\n";
    return ExitCode::usage;
  }
  const auto names = verb_names();
  const auto found = std::find(names.begin(), names.end(), word);
  if (found == names.end()) return unknown_verb(terminal, word);
  return run_verb(line, static_cast<std::size_t>(found - names.begin()),
                  {arguments.begin() + 1, arguments.end()}, terminal);
}

}  // namespace sextant
