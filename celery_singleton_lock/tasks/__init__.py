"""Celery's side of a call."""

from __future__ import annotations

from celery.exceptions import ImproperlyConfigured

from ..errors import LockConfigError, SingletonLockError

# A worker shows an ImproperlyConfigured without its traceback. The locks work without Celery, so errors.py cannot name
# it: the base class is added where Celery's side begins.
LockConfigError.__bases__ = (SingletonLockError, ImproperlyConfigured)
