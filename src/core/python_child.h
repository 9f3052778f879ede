// Python child processes, for libraries that exist only in Python: pyarrow for Parquet and jinja2 for chat templates.
#pragma once
#include <spawn.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace lazy {

struct PythonInterpreter {
  std::string path;      // a path, or a name that is searched on PATH
  std::string origin;    // where the path comes from, for messages, such as "PATH"
  std::string rejected;  // the interpreter of the build and why it cannot be started; empty if it is used or absent
};

// Returns the interpreter of all Python child processes: LAZY_PYTHON if it is set and not empty, or else `of_build` if
// it is an executable file, or else python3. If `of_build` exists and is not executable, for example because it is a
// link into a folder of another user, `rejected` says so.
PythonInterpreter find_python_interpreter(const std::string& of_build);

// Calls find_python_interpreter(of_build) with the interpreter whose PyTorch this program was built with. In a program
// that was installed from a wheel, `of_build` is empty.
PythonInterpreter find_python_interpreter();

// Returns find_python_interpreter().path. The first call logs a warning if the interpreter of the build is rejected.
std::string python_interpreter();

// Starts the interpreter with the source text `script`; sys.argv[1:] contains `arguments`. Returns 0, or an errno if
// the interpreter cannot be started.
//
// The child runs in the root directory, so file names in `arguments` must be absolute paths. The reason is that Python
// searches the working directory for modules (with `-c`, and for each empty or relative entry of PYTHONPATH), and a
// json.py next to the user's data must not be executed. Packages of the user and of virtual environments can still be
// imported. UTF-8 mode is enabled, so the locale affects neither file names nor open(). Scripts must use the byte
// streams of stdin and stdout, because PYTHONIOENCODING still applies to the text streams.
//
// The child runs in a separate process group and with SIGINT blocked, so that Ctrl-C and the signals of `timeout` only
// reach this program, which may still need the child to finish its work. If the child fails when nobody reads its
// standard output any more, because this program has ended, the child ends without a traceback.
//
// `actions` set up the file descriptors of the child; a change of directory is appended to them.
int spawn_python(pid_t& child, const std::string& script, const std::vector<std::string>& arguments,
                 posix_spawn_file_actions_t& actions);

// Replaces this process by the interpreter, with the same script, arguments and directory as spawn_python. The script
// receives SIGINT, which ends it without a traceback unless the script handles KeyboardInterrupt. Returns an errno if
// the interpreter cannot be started; otherwise does not return.
int exec_python(const std::string& script, const std::vector<std::string>& arguments);

}  // namespace lazy
