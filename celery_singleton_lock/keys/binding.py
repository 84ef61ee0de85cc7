"""A call's arguments by name, as its body will see them, and the fingerprint by which two calls are compared."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ..errors import LockKeyError
from .encoding import encode
from .names import digest


def bind(signature: inspect.Signature, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments by name, defaults applied; TypeError, as inspect words it, where they do not fit."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def binder(signature: inspect.Signature) -> Callable[[Collection[Any], Mapping[str, Any]], dict[str, Any]]:
    """`bind` prepared once for one signature: several times as fast where that has no ``*``, ``**`` or ``/``.

    The order of the dict is not the signature's.
    """
    parameters = signature.parameters.values()
    positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    known = {*positional, *(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)}
    plain = len(known) == len(parameters)
    given = defaults(signature)

    def bind_fast(args: Collection[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if plain and len(args) <= len(positional):
            arguments = {**given, **dict(zip(positional, args, strict=False)), **kwargs}
            # Complete, nothing unknown, nothing given twice; what is not so is inspect's to refuse.
            once = not kwargs or kwargs.keys().isdisjoint(positional[: len(args)])
            if once and len(arguments) == len(known) and known.issuperset(kwargs):
                return arguments
        return bind(signature, args, kwargs)

    return bind_fast


def defaults(signature: inspect.Signature) -> dict[str, Any]:
    """What `bind` fills in for the arguments that a call leaves out."""
    empty: dict[Any, Any] = {inspect.Parameter.VAR_POSITIONAL: (), inspect.Parameter.VAR_KEYWORD: {}}
    return {
        p.name: empty.get(p.kind, p.default)
        for p in signature.parameters.values()
        if p.kind in empty or p.default is not p.empty
    }


def fingerprint(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """64 hex digits for the bound arguments without those that equal their defaults.

    So a parameter that gets added later, with a default, changes no earlier call's. Raises `LockKeyError` for an
    argument without a stable form.
    """
    parts: list[str] = []
    for name in sorted(arguments):
        value = arguments[name]
        if name in defaults:
            default = defaults[name]
            if value is default:
                continue
            text = encode(value, name)
            if text == _default(default, name):
                continue
        else:
            text = encode(value, name)
        parts += (name, text)
    return digest(*parts)


def _default(default: object, name: str) -> str | None:
    try:
        return encode(default, name)
    except LockKeyError:  # a sentinel, say: no argument with a stable form equals it
        return None


def models(function: Callable[..., Any]) -> dict[str, type]:
    """The parameters of ``function`` that Celery validates, with their pydantic models: ``Model`` and ``Model | None``.

    Empty where pydantic is not imported: then no annotation can be a model of it.
    """
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    if base is None:
        return {}
    try:
        hints = typing.get_type_hints(function)
    except (NameError, AttributeError, TypeError):  # as Celery does: what the annotations say as they stand
        hints = {name: p.annotation for name, p in inspect.signature(function).parameters.items()}
    hints.pop("return", None)
    found = {name: _without_none(hint) for name, hint in hints.items()}
    return {name: hint for name, hint in found.items() if inspect.isclass(hint) and _is_model(hint, base)}


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not types.NoneType]
        if len(members) == 1:
            return members[0]
    return hint


def _is_model(hint: Any, base: type) -> bool:
    try:
        return issubclass(hint, base)
    except TypeError:  # list[int] counts as a class on Python 3.10
        return False


def validated(
    arguments: Mapping[str, Any],
    models: Mapping[str, Any],
    *,
    strict: bool = False,
    context: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The arguments with each model's value validated; one that does not validate stays, for the body to report.

    ``strict``, ``context``: the task's ``pydantic_strict`` and ``pydantic_context``.
    """
    result = dict(arguments)
    for name, model in models.items():
        value = result.get(name)
        if value is None:
            continue
        try:
            result[name] = model.model_validate(value, strict=strict, context=dict(context or {}))
        except Exception:  # noqa: BLE001  # a user's validator may raise anything; the body meets the same one
            continue
    return result
