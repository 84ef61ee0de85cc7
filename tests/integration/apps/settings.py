"""What every app of these tests is configured with: its URLs come from the environment, as `load_app` sets them."""

import os

broker_url = os.environ["TEST_BROKER_URL"]
result_backend = os.environ["TEST_BACKEND_URL"]
singleton_lock_url = os.environ["TEST_LOCK_URL"]

broker_connection_retry_on_startup = True
broker_transport_options = {"visibility_timeout": float(os.environ.get("TEST_VISIBILITY_TIMEOUT", "3600"))}
worker_prefetch_multiplier = 1
worker_hijack_root_logger = True
