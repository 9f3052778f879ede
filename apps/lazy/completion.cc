// `lazy completion`: shell scripts that complete the commands, options and choices of the command tree.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>

#include "command.h"

namespace lazy::cli {
namespace {

// Calls `visit` with each command, its path ("lazy data prepare"), and the options that it accepts.
using Visit = std::function<void(const std::string&, const CommandDescription&, const std::vector<OptionDescription>&)>;
void walk(const CommandDescription& command, const std::string& path, const std::vector<OptionDescription>& inherited,
          const Visit& visit) {
  std::vector<OptionDescription> options = command.options;
  for (const OptionDescription& option : inherited) options.push_back(option);
  visit(path, command, options);
  for (const CommandDescription& child : command.subcommands) walk(child, path + " " + child.name, inherited, visit);
}

// Returns the options of the program itself that may also follow a subcommand. --help is excluded, because each
// subcommand has one.
std::vector<OptionDescription> shared_options(const CommandDescription& program) {
  std::vector<OptionDescription> out;
  for (const OptionDescription& option : program.options) {
    const bool help = !option.names.empty() && option.names.front() == "--help";
    if (!help && !option.names.empty() && option.names.front() != "--version") out.push_back(option);
  }
  return out;
}

struct CompletionTables {
  // Each string is the body of a shell `case` statement. The patterns are command paths, with the option name in
  // `choices` and `valued`.
  std::string commands, options, choices, valued;
};

// Returns the tables for one shell. If `described` is true (zsh), entries have the form "name:description"; otherwise
// they are only names.
CompletionTables tables(const CommandDescription& program, bool described) {
  const auto entry = [&](const std::string& name, const std::string& help) {
    if (!described) return name;
    std::string line = help.substr(0, help.find('\n'));
    return shell_word(name + ":" + line);
  };
  CompletionTables out;
  const auto visit = [&](const std::string& path, const CommandDescription& command,
                         const std::vector<OptionDescription>& options) {
    std::vector<std::string> children, names, valued, positional;
    for (const CommandDescription& child : command.subcommands) children.push_back(entry(child.name, child.help));
    for (const OptionDescription& option : options) {
      if (option.names.empty()) {
        for (const std::string& choice : option.choices) positional.push_back(entry(choice, ""));
      }
      for (const std::string& name : option.names) {
        names.push_back(entry(name, option.help));
        if (option.takes_value) valued.push_back(shell_word(path + " " + name));
        if (!option.choices.empty()) {
          std::vector<std::string> choices;
          for (const std::string& choice : option.choices) choices.push_back(shell_word(choice));
          out.choices +=
              fmt::format("    {}) candidates=({}) ;;\n", shell_word(path + " " + name), fmt::join(choices, " "));
        }
      }
    }
    children.insert(children.end(), positional.begin(), positional.end());
    out.commands += fmt::format("    {}) candidates=({}) ;;\n", shell_word(path), fmt::join(children, " "));
    out.options += fmt::format("    {}) candidates=({}) ;;\n", shell_word(path), fmt::join(names, " "));
    if (!valued.empty()) out.valued += (out.valued.empty() ? "" : "|") + fmt::format("{}", fmt::join(valued, "|"));
  };
  visit(program.name, program, program.options);
  for (const CommandDescription& child : program.subcommands)
    walk(child, program.name + " " + child.name, shared_options(program), visit);
  return out;
}

// Shell functions that fill the array `candidates`, for both bash and zsh.
constexpr const char* kFunctions = R"SH(_lazy_commands() {{
  candidates=()
  case $1 in
{commands}  esac
}}
_lazy_options() {{
  candidates=()
  case $1 in
{options}  esac
}}
# Choices of an option's value.
_lazy_choices() {{
  candidates=()
  case $1 in
{choices}  esac
}}
# Whether an option is followed by a value.
_lazy_valued() {{
  case $1 in
    {valued}) return 0 ;;
  esac
  return 1
}}
)SH";

constexpr const char* kBash = R"SH(# Completion of lazy for bash. In ~/.bashrc:  source <(lazy completion bash)
{functions}_lazy() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} path=lazy word n
  local -a candidates
  # Bash takes --option=value for three words.
  if [[ $current == = ]]; then
    current=
  elif [[ $previous == = ]]; then
    previous=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  for ((n = 1; n < COMP_CWORD; ++n)); do
    word=${{COMP_WORDS[n]}}
    if _lazy_valued "$path $word"; then
      ((++n))
      [[ ${{COMP_WORDS[n]}} == = ]] && ((++n))
      continue
    fi
    _lazy_commands "$path"
    [[ " ${{candidates[*]}} " == *" $word "* ]] && path+=" $word"
  done
  COMPREPLY=()
  if _lazy_valued "$path $previous"; then
    _lazy_choices "$path $previous"
  elif [[ $current == -* ]]; then
    _lazy_options "$path"
  else
    _lazy_commands "$path"
  fi
  if ((${{#candidates[@]}})); then
    mapfile -t COMPREPLY < <(compgen -W "${{candidates[*]}}" -- "$current")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}}
complete -F _lazy lazy
)SH";

constexpr const char* kZsh = R"SH(#compdef lazy
# Completion of lazy for zsh. In ~/.zshrc, after compinit:  source <(lazy completion zsh)
{functions}_lazy() {{
  local current=${{words[CURRENT]}} previous=${{words[CURRENT - 1]}} place=lazy word
  local -a line=("${{words[@]}}")
  local -i n at=CURRENT
  local -a candidates
  if [[ $current == --*=* ]]; then
    previous=${{current%%=*}}
    compset -P '*='
  fi
  for ((n = 2; n < at; ++n)); do
    word=${{line[n]}}
    if _lazy_valued "$place $word"; then
      ((++n))
      continue
    fi
    _lazy_commands "$place"
    [[ -n $word && -n ${{(M)candidates:#$word:*}} ]] && place+=" $word"
  done
  if _lazy_valued "$place $previous"; then
    _lazy_choices "$place $previous"
    ((${{#candidates}})) && compadd -a candidates || _files
    return
  fi
  if [[ $current == -* ]]; then
    _lazy_options "$place"
  else
    _lazy_commands "$place"
  fi
  ((${{#candidates}})) && _describe lazy candidates || _files
}}
if [[ $funcstack[1] == _lazy ]]; then
  _lazy "$@"
else
  compdef _lazy lazy
fi
)SH";

void print_completion(const CommandDescription& program, const std::string& shell) {
  const CompletionTables t = tables(program, shell == "zsh");
  const std::string functions =
      fmt::format(fmt::runtime(kFunctions), fmt::arg("commands", t.commands), fmt::arg("options", t.options),
                  fmt::arg("choices", t.choices), fmt::arg("valued", t.valued));
  fmt::print(fmt::runtime(shell == "zsh" ? kZsh : kBash), fmt::arg("functions", functions));
}

}  // namespace
}  // namespace lazy::cli

LAZY_COMMAND(completion, "Print a script that completes commands and options in a shell", [](CLI::App& command) {
  auto shell = std::make_shared<std::string>();
  command.add_option("shell", *shell, "Shell")->required()->check(lazy::cli::one_of({"bash", "zsh"}));
  command.footer(
      "Examples:\n"
      "  source <(lazy completion bash)                    (in ~/.bashrc)\n"
      "  source <(lazy completion zsh)                     (in ~/.zshrc, after compinit)\n"
      "  lazy completion zsh > \"${fpath[1]}/_lazy\"         (alternative for zsh; run once)");
  command.callback(
      [&command, shell] { lazy::cli::print_completion(lazy::cli::describe(lazy::cli::root(command)), *shell); });
});
