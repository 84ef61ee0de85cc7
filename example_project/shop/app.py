"""The shop's Celery app. Its settings are read at its first use, from the environment."""

from __future__ import annotations

from celery import Celery

app = Celery("shop", include=["example_project.shop.tasks"])
app.config_from_object("example_project.shop.config")
