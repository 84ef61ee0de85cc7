"""Tasks that are alone on the resource they name, in one app."""

from ..kit import notes
from . import attempts, counting, held, leases, nesting, paying
from .base import app

__all__ = ["app", "attempts", "counting", "held", "leases", "nesting", "notes", "paying"]
