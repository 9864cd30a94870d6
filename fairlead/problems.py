"""What a command says when it cannot do what was asked. Wording and exit codes; nothing else.

Exit codes: 0 it is done; 1 it is not, and the text says why; 2 the command line itself is wrong;
130 and 143 it was ended by Ctrl-C or SIGTERM before it was done.
"""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SIGNAL = 128


class Problem(Exception):
    """Something stands against a command: what it is, and what to do next."""

    exit_code = EXIT_FAILED

    def __init__(self, what: str, next_step: str) -> None:
        super().__init__(f"{what}; {next_step}")


class UsageProblem(Problem):
    """The command line asks for something that does not fit together."""

    exit_code = EXIT_USAGE
