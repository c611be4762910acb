"""A snakemake logger plugin: what happens to the jobs, one JSON object a line, for `gdro run` to read."""

import json
from dataclasses import dataclass, field
from logging import LogRecord
from pathlib import Path
from typing import Optional

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """The option --logger-gdro-events of snakemake."""

    events: Optional[Path] = field(default=None, metadata={"help": "File to write to", "required": True})  # noqa: UP045 -- snakemake calls the type


class LogHandler(LogHandlerBase):
    """Writes `total`, then for each job its `started`, and `finished` or `failed` number, with its log."""

    writes_to_stream, writes_to_file = False, True
    has_filter = has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self.baseFilename = str(self.settings.events)  # snakemake asks for it
        self.stream = open(self.baseFilename, "w", encoding="utf-8")  # noqa: SIM115 -- closed with the process

    def emit(self, record: LogRecord) -> None:
        """Write an event of a job; leave out all others."""
        event, seen = getattr(record, "event", None), record.__dict__
        if event == LogEvent.RUN_INFO:
            found = {"total": seen["stats"]["total"]}
        elif event == LogEvent.JOB_INFO:
            found = {"started": seen["jobid"], "log": [str(path) for path in seen["log"]]}
        elif event == LogEvent.JOB_FINISHED:
            found = {"finished": seen["job_id"]}
        elif event == LogEvent.JOB_ERROR:
            found = {"failed": seen["jobid"]}
        else:
            return
        print(json.dumps(found), file=self.stream, flush=True)
