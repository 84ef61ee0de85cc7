"""Digests and the names of one resource: `celery_singleton_lock.keys.names`."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_singleton_lock.errors import LockConfigError, LockKeyError
from celery_singleton_lock.keys.names import check_prefix, digest, key_id, names, record_id, scoped

quick = settings(deadline=None)
parts = st.lists(st.text("1:a\ud800", max_size=3), max_size=4)


def test_names() -> None:
    """Every name is prefix, layout, bucket, kind, resource."""
    found = names("singleton-lock", "order:7")
    digits = hashlib.sha256(b"order:7").hexdigest()
    bucket = f"singleton-lock:1:{{{digits[:2]}}}:"
    assert found.lock == f"{bucket}lock:order:7"
    assert found.fence == f"{bucket}fence:order:7"
    assert found.index == f"{bucket}index"
    assert found.tombstone("ab" * 16) == f"{bucket}tombstone:{'ab' * 16}:order:7"
    assert found.record("cd" * 16) == f"{bucket}record:{'cd' * 16}:order:7"
    assert found.key_id == key_id("order:7") == digits[:16]


@quick
@given(st.text())
def test_one_slot(resource: str) -> None:
    """Whatever braces a resource has, what a cluster hashes of all its names is the same bucket of 256."""
    found = names("p", resource)
    tags = {
        name[name.index("{") + 1 : name.index("}")]
        for name in (found.lock, found.fence, found.index, found.tombstone("t"), found.record("r"))
    }
    assert len(tags) == 1
    assert re.fullmatch("[0-9a-f]{2}", tags.pop())


@quick
@given(parts, parts)
def test_digest_is_injective(left: list[str], right: list[str]) -> None:
    """Parts cut at other places have another digest."""
    assert (digest(*left) == digest(*right)) == (left == right)


def test_digests() -> None:
    """The digests are those of the last release: records and locks of old and new workers must meet."""
    assert digest("a", "") == hashlib.sha256(b"1:a0:").hexdigest()
    assert record_id("shop.charge", "evt-1") == digest("shop.charge", "evt-1")[:32]
    assert record_id("shop.ship", "evt-1") != record_id("shop.charge", "evt-1")
    assert scoped("shop.charge", "x") == f"shop.charge:{digest('x')}"


def test_a_resource_that_no_server_can_name() -> None:
    """A text without UTF-8 is an error of the key."""
    for use in (key_id, lambda resource: names("p", resource)):
        with pytest.raises(LockKeyError, match="not valid Unicode"):
            use("order:\ud800")


@pytest.mark.parametrize("prefix", ["", "a{b", "a}", "a b", "a\n", "\x00", "\ud800", None, b"p", 7])
def test_bad_prefixes(prefix: object) -> None:
    """A prefix that would move the cluster's hash tag, or that an ACL pattern cannot hold, is refused by name."""
    with pytest.raises(LockConfigError, match="singleton_lock_prefix"):
        check_prefix(prefix)


def test_prefixes() -> None:
    """Anything else stands as it is."""
    assert check_prefix("shop:eu-1") == "shop:eu-1"
