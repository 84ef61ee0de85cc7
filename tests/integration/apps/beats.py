"""A beat that knows its task by name only."""

from __future__ import annotations

from .private import Private

app = Private("beats", config_source="tests.integration.apps.settings")
app.conf.beat_schedule = {
    "every second": {"task": "locked.tick", "schedule": 1.0, "args": ["beat"]},
}
