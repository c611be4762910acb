"""Running a command whose output the reader sees as it comes."""

import subprocess
import threading
from collections import deque
from collections.abc import Sequence

import psutil

LINES_TOLD = 30
SECONDS_TO_END = 30.0  # between asking a process to end and ending it


def stream(command: Sequence[str], name: str, seconds: float | None = None) -> None:
    """Run `command`, print what it prints line by line, and come back when it has ended.

    name: what messages call it. seconds: it may take.
    Raises RuntimeError with the end of its output if it fails or takes too long. If this process is
    interrupted, the command is ended too.
    """
    last = deque[str](maxlen=LINES_TOLD)
    late = threading.Event()
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None

        def stop():
            late.set()
            end_family(process.pid)

        timer = threading.Timer(seconds, stop) if seconds is not None else None
        if timer is not None:
            timer.start()
        interrupted = True
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                last.append(line)
            interrupted = False
        finally:
            if interrupted:
                end_family(process.pid)
            if timer is not None:
                timer.cancel()
    if late.is_set():
        raise RuntimeError(f"{name} took longer than its {seconds:.0f} s and was ended")
    if process.returncode:
        raise RuntimeError(
            f"{name} failed with exit code {process.returncode}; it ended with\n{''.join(last)}"
        )


def end_family(pid: int) -> None:
    """End a process and all that it has started: first by asking, after `SECONDS_TO_END` by force."""
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        _signal(member.terminate)
    _, alive = psutil.wait_procs(family, timeout=SECONDS_TO_END)
    for member in alive:
        _signal(member.kill)


def _signal(send):
    try:
        send()
    except psutil.NoSuchProcess:
        return  # it has ended by itself
