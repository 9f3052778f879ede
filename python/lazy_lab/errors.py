"""Errors of a command, with the same exit codes as in the program `lazy`: wrong user input, or a failed run."""


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
