"""The worker's log: one JSON object per line on standard error, for the launcher to forward.

Keys: timestamp (RFC 3339, UTC), level (DEBUG, INFO, WARN, ERROR), target, message, and what the caller
adds. A line with "fatal": true is the reason why the process ends.
"""

import datetime
import json
import sys
from typing import Any


def log(level: str, message: str, **fields: Any) -> None:
    """Writes one line."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"timestamp": now, "level": level, "target": "penstock.worker", "message": message, **fields}
    sys.stderr.write(json.dumps(line) + "\n")
    sys.stderr.flush()
