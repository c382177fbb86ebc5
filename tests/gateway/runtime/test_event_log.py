"""Events are JSON lines, and so is what libraries log."""

import json
import logging
from pathlib import Path

from gateway.runtime.event_log import EventLog, LoggingBridge
from gateway.runtime.line_writer import LineWriter


def test_events_are_lines_too(tmp_path: Path) -> None:
    """Below the level they are not said; what libraries log comes out the same way."""
    path = tmp_path / "log"
    log_event = EventLog(LineWriter(path), "warning")
    log_event("info", "not said")
    log_event("error", "pod file is bad", file=path)
    logger = logging.Logger("library")  # noqa: LOG001 - one that nobody else has
    logger.addHandler(LoggingBridge(log_event))
    logger.info("not said either")
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it broke")
    log_event.writer.close()
    shown = [json.loads(each) for each in path.read_text().splitlines()]
    assert [(each["level"], each["message"]) for each in shown] == [("error", "pod file is bad"), ("error", "it broke")]
    assert shown[0]["file"] == str(path)
    assert (shown[1]["logger"], shown[1]["error"]) == ("library", "ValueError('why')")
