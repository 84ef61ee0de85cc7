"""A template over the bound arguments, such as ``order:{order_id}``: the text of a resource, one per set of values."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import LockConfigError, LockKeyError
from .encoding import encode

# Why one template gives different texts for different values. Each field is one of three:
#   - a bare token: not empty, of _BARE's characters without those of any separator (the literals between two fields);
#   - a JSON string, which begins with a quote;   - a JSON array, which begins with a bracket.
# Neither a quote nor a bracket is in _BARE, so a field's first character tells which it is. JSON ends by its own
# grammar; a bare token ends where the separator begins, as no separator is empty and none of its characters can be
# in a bare token; after the last field comes a literal of known length. So a text reads back in one way only.
# A bare token that looks like an int is one (such strings are quoted), any other is a string; the arrays are
# encode()'s, which is injective, and ["int", n], which encode() never writes.
_BARE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.@/+"
_INT = "-?[0-9]+"
_FIELD = re.compile(r"(?P<name>[^\W\d]\w*)(?P<steps>(?:\.[^\W\d]\w*|\[[^\[\]]+\])*)")
_STEP = re.compile(r"\.(?P<attribute>\w+)|\[(?P<item>[^\[\]]+)\]")

Step = tuple[bool, str]  # whether it is an attribute, and its name


class Field:
    """One ``{...}`` of a template: the argument it begins with, the steps from there, and its text in messages."""

    __slots__ = ("name", "steps", "text")

    def __init__(self, text: str, option: str) -> None:
        match = _FIELD.fullmatch(text)
        if match is None:
            raise LockConfigError(
                f"{option}: the field {{{text}}} cannot be read; it begins with an argument's name, as in "
                "{order_id}, {order[id]} or {order.id}"
            )
        self.text = text
        self.name = match["name"]
        self.steps: tuple[Step, ...] = tuple(
            (step["attribute"] is not None, step["attribute"] or step["item"])
            for step in _STEP.finditer(match["steps"])
        )
        for is_attribute, name in self.steps:
            if is_attribute and name.startswith("_"):
                raise LockConfigError(f"{option}: the field {{{text}}} reaches for a private attribute")

    def value(self, arguments: Mapping[str, Any]) -> Any:
        """What the arguments hold there; `LockKeyError` where that is nothing, or None."""
        try:
            value = arguments[self.name]
        except KeyError:
            raise LockKeyError(self.text, "the call has no such argument") from None
        for is_attribute, name in self.steps:
            if value is None:
                break
            value = _attribute(value, name, self.text) if is_attribute else _item(value, name, self.text)
        if value is None:
            raise LockKeyError(self.text, "it is None, and a lock on nothing would be shared by every such call")
        return value


def _attribute(value: Any, name: str, field: str) -> Any:
    if isinstance(value, Mapping):
        raise LockKeyError(
            field,
            f"it is a dict here, as a JSON message brings it: write [{name}] instead of .{name}, "
            "or give the task pydantic=True and a model that the dict fits",
        )
    try:
        return getattr(value, name)
    except Exception:  # noqa: BLE001  # whatever a property raises: its text may show values
        raise LockKeyError(field, f"{type(value).__qualname__} has no attribute {name} that can be read") from None


def _item(value: Any, name: str, field: str) -> Any:
    index = int(name) if name.isascii() and name.isdigit() else None
    try:
        if isinstance(value, Mapping):
            # A JSON message turns the key 1 into "1": either finds it.
            return value[name] if index is None or name in value else value[index]
        if isinstance(value, (list, tuple)) and index is not None:
            return value[index]
    except LookupError:
        raise LockKeyError(field, f"there is no item [{name}]") from None
    raise LockKeyError(
        field,
        f"[{name}] is for a dict, or a number for a list, and this is of type {type(value).__qualname__}; "
        f"an object's attribute is written .{name}",
    )


class Template:
    """A parsed template. ``fields``: what it reads; ``literal``: the text outside of them; ``option``: for errors."""

    def __init__(self, source: str, option: str) -> None:
        self.option = option
        self.literals: list[str] = [""]
        self.fields: list[Field] = []
        try:
            pieces = list(string.Formatter().parse(source))
        except ValueError as error:
            raise LockConfigError(f"{option}: the template cannot be read: {error}") from None
        for literal, name, spec, conversion in pieces:
            self.literals[-1] += literal
            if name is None:
                continue
            if name == "" or name[0].isdigit():
                raise LockConfigError(f"{option}: the field {{{name}}} is positional; write an argument's name in it")
            if spec or conversion:
                raise LockConfigError(
                    f"{option}: the field {{{name}}} takes no format and no conversion; write {{{name}}}"
                )
            self.fields.append(Field(name, option))
            self.literals.append("")
        self._separate(option)

    def _separate(self, option: str) -> None:
        """Find what bare tokens may hold, and refuse two fields that run into each other."""
        separators = self.literals[1:-1]
        for separator, left, right in zip(separators, self.fields, self.fields[1:], strict=False):
            if not separator:
                raise LockConfigError(
                    f"{option}: nothing stands between {{{left.text}}} and {{{right.text}}}, so different values "
                    "would give one key; put ':' between them"
                )
        taken = set("".join(separators))
        bare = re.escape("".join(c for c in _BARE if c not in taken))
        # An empty class would not compile; then no token is bare.
        token = f"[{bare}]+" if bare else r"(?!)"
        self._bare: Callable[[str], object] = re.compile(f"(?!{_INT}\\Z){token}").fullmatch
        self._digits = taken.isdisjoint(string.digits)
        self._minus = "-" not in taken

    @property
    def literal(self) -> str:
        """The text outside the fields."""
        return "".join(self.literals)

    def build(self, arguments: Mapping[str, Any]) -> str:
        """The template filled in; `LockKeyError` names the field that cannot be."""
        text = self.literals[0]
        for field, literal in zip(self.fields, self.literals[1:], strict=True):
            value = arguments.get(field.name) if not field.steps else None
            if value is None:
                value = field.value(arguments)
            text += self._render(value, field.text) + literal
        return text

    def _render(self, value: Any, field: str) -> str:
        kind = type(value)
        if kind is int:
            return self._int(value, field)
        if kind is str:
            return value if self._bare(value) else encode(value, field)
        if isinstance(value, str):  # an enum of text, say: JSON makes it plain text
            return self._render(str.__str__(value), field)
        if isinstance(value, int) and kind is not bool:
            return self._int(value, field)
        return encode(value, field)

    def _int(self, value: int, field: str) -> str:
        text = encode(value, field)
        if self._digits and (self._minus or value >= 0):
            return text
        return f'["int",{text}]'
