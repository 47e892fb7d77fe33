#include "tools/import/command_flags.hpp"

#include <algorithm>
#include <cctype>

#include "core/base/decimal.hpp"
#include "tools/import/shell_lexer.hpp"
#include "tools/import/shell_variables.hpp"

namespace sextant {

namespace {

constexpr long long kMostGpus = 1 << 24;

bool is_option(const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return false;
  return word[1] == '-' ? word.size() > 2 && std::isalpha(static_cast<unsigned char>(word[2]))
                        : std::isalpha(static_cast<unsigned char>(word[1]));
}

// "--seq_length=4096" as "--seq-length" and "4096".
void add_option(const std::string& word, CommandFlags& flags, std::vector<std::string>*& values) {
  const std::size_t equals = word.find('=');
  std::string name = word.substr(0, equals);
  std::replace(name.begin(), name.end(), '_', '-');
  values = &flags.options[name];
  values->clear();
  if (equals != word.npos) values->push_back(word.substr(equals + 1));
}

std::optional<long long> number_of(const CommandFlags& flags, const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (const auto at = flags.options.find(name); at != flags.options.end() && !at->second.empty()) {
      std::string text = at->second.front();
      if (const auto colon = text.rfind(':'); colon != text.npos)
        text = text.substr(colon + 1);  // h100:8, 1:4
      if (const auto n = parse_count(text, kMostGpus); n && *n > 0) return n;
    }
  return std::nullopt;
}

CommandFlags options_of(const std::vector<std::string>& words) {
  CommandFlags flags;
  std::vector<std::string>* values = nullptr;
  for (const std::string& word : words)
    if (is_option(word))
      add_option(word, flags, values);
    else if (values)
      values->push_back(word);
  return flags;
}

std::optional<int> started_ranks(const CommandFlags& launcher, const CommandFlags& slurm,
                                 const std::string& name) {
  const auto of_both = [&](const std::vector<std::string>& names) {
    const auto n = number_of(launcher, names);
    return n ? n : number_of(slurm, names);
  };
  auto nodes = of_both({"--nnodes", "--nodes", "-N", "--num-nodes", "--num-machines"});
  const auto all = name == "accelerate" ? number_of(launcher, {"--num-processes"})
                                        : number_of(launcher, {"-np", "-n", "--ntasks"});
  auto per_node = number_of(launcher, {"--nproc-per-node", "--num-gpus", "--ntasks-per-node"});
  if (!per_node) per_node = number_of(slurm, {"--gpus-per-node", "--gres", "--ntasks-per-node"});
  if (!per_node && name.empty()) return std::nullopt;
  if (!per_node && all) return static_cast<int>(*all);
  if (!per_node || *per_node * nodes.value_or(1) > kMostGpus) return std::nullopt;
  return static_cast<int>(*per_node * nodes.value_or(1));
}

}  // namespace

CommandFlags command_flags(const std::vector<std::string>& words, const std::vector<std::string>& slurm) {
  // The program is the first script of Python, or what follows -m.
  std::size_t program = words.size();
  std::string name;
  for (std::size_t i = 0; i < words.size() && program == words.size(); ++i) {
    const std::string& w = words[i];
    if (w == "torch.distributed.launch" || w == "torch.distributed.run") name = "torchrun";
    for (const char* launcher : {"torchrun", "deepspeed", "accelerate", "srun", "mpirun", "mpiexec"})
      if (w == launcher || w.ends_with(std::string("/") + launcher)) name = launcher;
    const bool module = i > 0 && words[i - 1] == "-m" && w.find("torch.distributed") == w.npos;
    if (w.ends_with(".py") || module) program = i;
  }
  const auto part = [&](std::size_t from, std::size_t to) {
    return std::vector<std::string>(words.begin() + static_cast<std::ptrdiff_t>(std::min(from, words.size())),
                                    words.begin() + static_cast<std::ptrdiff_t>(std::min(to, words.size())));
  };
  if (program == words.size()) {
    CommandFlags flags = options_of(words);
    flags.gpus = started_ranks({}, options_of(slurm), "");
    return flags;
  }
  CommandFlags flags = options_of(part(program + 1, words.size()));
  const std::size_t slash = words[program].rfind('/');
  flags.program = slash == std::string::npos ? words[program] : words[program].substr(slash + 1);
  flags.gpus = started_ranks(options_of(part(0, program)), options_of(slurm), name);
  return flags;
}

CommandFlags training_command(const ShellScript& script) {
  CommandFlags best;
  for (std::size_t i = 0; i < script.commands.size(); ++i) {
    std::vector<std::string> words = script.commands[i].words;
    // Options on lines of their own go on the command before them.
    while (i + 1 < script.commands.size() && is_option(script.commands[i + 1].words.front())) {
      ++i;
      words.insert(words.end(), script.commands[i].words.begin(), script.commands[i].words.end());
    }
    CommandFlags flags = command_flags(words, script.slurm);
    if (flags.count() > best.count()) best = std::move(flags);
  }
  if (best.count() > 1) return best;
  for (const auto& [name, values] : script.variables) {
    std::vector<std::string> words;
    for (const std::string& value : values)
      for (const ShellToken& token : shell_tokens(value))
        if (token.kind == ShellToken::word) words.push_back(token.text);
    CommandFlags flags = command_flags(words, script.slurm);
    if (flags.count() > best.count()) best = std::move(flags);
  }
  return best;
}

}  // namespace sextant
