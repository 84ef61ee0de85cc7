"""Arguments of a ``pydantic=True`` task as its body will see them: the dict of the message turned into the model."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any


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
        except Exception:  # a user's validator may raise anything; the body meets the same one
            continue
    return result
