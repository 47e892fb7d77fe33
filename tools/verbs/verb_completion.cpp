// `sextant completion SHELL`: the script that completes this command's verbs, options and preset names.
#include <memory>
#include <ostream>

#include <nlohmann/json.hpp>

#include "tools/verbs/completion.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {
ExitCode run(Session& session, const std::string& shell) {
  const CommandLine line;
  const std::string script = shell == "bash"  ? bash_completion(line)
                             : shell == "zsh" ? zsh_completion(line)
                                              : fish_completion(line);
  if (session.common.json)
    print_json(session, "completion", {{"shell", shell}, {"script", script}});
  else
    session.terminal.out << script;
  return ExitCode::ok;
}
}  // namespace

Verb completion_verb() {
  return {.name = "completion",
          .summary = "print the completion script of a shell",
          .description = "Completes verbs, options, and the names of models, clusters and stacks.",
          .examples = {{"for this bash session: eval it, or keep it as a file",
                        "eval \"$(sextant completion bash)\""},
                       {"for fish", "sextant completion fish > sextant.fish"}},
          .define = [](CLI::App& app) -> Run {
            auto shell = std::make_shared<std::string>();
            add_text(app, {.flag = "shell", .metavar = "bash|zsh|fish", .text = "the shell"}, *shell);
            app.get_option("shell")->required();
            return [shell](Session& session) { return run(session, *shell); };
          }};
}

}  // namespace sextant
