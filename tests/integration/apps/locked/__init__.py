"""Tasks that are alone on the resource they name, in one app."""

from . import attempts, counting, held, leases, nesting, paying
from .base import app, notes

__all__ = ["app", "attempts", "counting", "held", "leases", "nesting", "notes", "paying"]
