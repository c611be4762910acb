"""Running a command whose output the reader sees as it comes."""

import subprocess
from collections import deque
from collections.abc import Mapping, Sequence

LINES_TOLD = 30


def stream(command: Sequence[str], name: str, environment: Mapping[str, str] | None = None) -> None:
    """Run `command`, print what it prints line by line, and come back when it has ended.

    name: what messages call it. environment: in place of this process's own.
    Raises RuntimeError with the end of its output if it fails. If this process is interrupted, the
    command is ended too.
    """
    last = deque[str](maxlen=LINES_TOLD)
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                last.append(line)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise RuntimeError(
            f"{name} failed with exit code {process.returncode}; it ended with\n{''.join(last)}"
        )
