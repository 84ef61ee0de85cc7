"""The Celery settings. The environment says which server, under which prefix, and whether the locks are on."""

from __future__ import annotations

import os

DAY = 2.0
"""How long a day lasts in this shop, in seconds: beat asks for a daily report that often."""

_url = os.environ["SHOP_REDIS_URL"]
_prefix = os.environ["SHOP_PREFIX"]

# One server for messages, results and locks. Every key begins with the prefix, so that the server may be shared.
broker_url = _url
broker_transport_options = {"global_keyprefix": _prefix}
broker_connection_retry_on_startup = True
result_backend = _url
result_backend_transport_options = {"global_keyprefix": _prefix}
singleton_lock_url = _url
singleton_lock_prefix = f"{_prefix}lock"
singleton_lock_enabled = os.environ["SHOP_LOCKED"] == "yes"
singleton_lock_ttl = 5  # seconds until the work of a machine that died goes on elsewhere
singleton_lock_retry_backoff = 0.2  # a body takes a tenth of a second: who waits for it looks again soon
singleton_lock_retry_backoff_max = 1

task_default_queue = "orders"
task_routes = {"example_project.shop.tasks.daily_report": {"queue": "reports"}}
worker_prefetch_multiplier = 1  # a message waits where every process can take it
beat_schedule = {"daily-report": {"task": "example_project.shop.tasks.daily_report", "schedule": DAY}}
