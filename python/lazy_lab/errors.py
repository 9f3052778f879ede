"""The two kinds of errors of a command, as in the program: the user's input is wrong, or the run failed."""


class UserError(Exception):
    """The input must be corrected: exit code 2."""

    exit_code = 2


class RunError(Exception):
    """The run failed although the request was right: exit code 1, or that of the failed command."""

    def __init__(self, message, exit_code=1):
        super().__init__(message)
        self.exit_code = exit_code


class Stopped(Exception):
    """A signal ended the command."""

    def __init__(self, signal_number):
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number
