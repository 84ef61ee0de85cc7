"""For how long a resource is held: the three lengths that tasks and locks share."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import LockConfigError
from ..values import Check, optional, positive_seconds, seconds

MIN_TTL = 0.05
MAX_TTL = 24 * 3600.0


def ttl_seconds(name: str, value: object) -> float:
    """A lease's length (int, float or timedelta) as seconds. Raises `LockConfigError`."""
    return seconds(name, value, least=MIN_TTL, most=MAX_TTL)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """``ttl``, ``at_least``, ``max_hold``: float seconds; what each means stands in docs/options.md."""

    ttl: float = 30.0
    at_least: float = 0.0
    max_hold: float | None = None

    def check_ranges(self) -> None:
        """Raise `LockConfigError` where one length contradicts another."""
        if self.at_least > self.ttl:
            raise LockConfigError(
                f"at_least: {self.at_least:g} s is longer than ttl, {self.ttl:g} s; raise ttl or lower at_least"
            )
        if self.max_hold is not None and self.max_hold < self.ttl:
            raise LockConfigError(
                f"max_hold: {self.max_hold:g} s is shorter than ttl, {self.ttl:g} s; lower ttl or raise max_hold"
            )


#: The check of each length by its name.
TERM_CHECKS: dict[str, Check] = {
    "ttl": ttl_seconds,
    "at_least": seconds,
    "max_hold": optional(positive_seconds),
}
