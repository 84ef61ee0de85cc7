"""One hold on one resource: without Celery, and without knowing any server."""
