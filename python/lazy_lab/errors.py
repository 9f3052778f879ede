"""Exceptions for wrong user input, failed runs and signals. Their exit codes are the same as in the program `lazy`."""

import signal
import sys


class UserError(Exception):
    """The user's input is wrong. Exit code 2."""

    exit_code = 2


class RunError(Exception):
    """The run failed although the input was valid. The exit code is 1 or the exit code of the failed command."""

    def __init__(self, message, exit_code=1):
        super().__init__(message)
        self.exit_code = exit_code


class Stopped(Exception):
    """A signal stopped the command. The exit code is 128 + the signal's number, as in a shell."""

    def __init__(self, signal_number):
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number


def exit_code_of(command, output, run):
    """Calls run(), prints the message of its error, and returns the exit code of the command."""

    def say(text):
        print(f"lazy {command}: {text}", file=sys.stderr, flush=True)

    try:
        run()
        return 0
    except (UserError, RunError) as error:
        say(f"{error}{'' if error.exit_code == 2 else '; run the same command again to continue'}")
        return error.exit_code
    except OSError as error:  # for example, a full disk or a folder without write permission
        say(f"{error.filename or output}: {error.strerror or error}; run the same command to continue")
        return 1
    except (Stopped, KeyboardInterrupt) as stopped:
        say("stopped; run the same command again to continue")
        return getattr(stopped, "exit_code", 128 + signal.SIGINT)
