"""Celery apps for real workers, one file each: a worker imports it, and the test loads it with `load_app`."""
