// Python child processes, for libraries that only Python has: pyarrow for Parquet, jinja2 for chat templates.
#pragma once
#include <spawn.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace lazy {

// $LAZY_PYTHON; "python3" if it is unset or empty.
std::string python_interpreter();

// Starts the interpreter on the source text `script`; sys.argv[1:] are `arguments`. Returns 0, or an errno if the
// interpreter cannot be started.
//
// The child runs in the root directory, so `arguments` must name files by absolute paths. Python searches the working
// directory for modules (`-c`, and each empty or relative entry of PYTHONPATH), and a json.py next to the user's data
// must not be executed. User and virtual-environment packages stay importable. UTF-8 mode is on: the locale changes
// neither file names nor open(). Scripts use the byte streams of stdin and stdout, as PYTHONIOENCODING still applies to
// the text streams.
//
// `actions` set up the child's file descriptors; a change of directory is appended. `attributes` may be null.
int spawn_python(pid_t& child, const std::string& script, const std::vector<std::string>& arguments,
                 posix_spawn_file_actions_t& actions, const posix_spawnattr_t* attributes = nullptr);

// Replaces this process by the interpreter, with the script, arguments and directory of spawn_python. Returns only if
// that fails: an errno.
int exec_python(const std::string& script, const std::vector<std::string>& arguments);

}  // namespace lazy
