"""The forms that ``key=`` and ``idempotency_key=`` take, compiled: from bound arguments to a text."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from ..errors import LockConfigError, LockKeyError
from .encoding import encode_arguments
from .names import scoped
from .template import Template


class KeySpec(Protocol):
    """What ``key=`` says, compiled: checked once against the task's signature, then built for each call."""

    def check(self, signature: inspect.Signature) -> None:
        """Raise `LockConfigError` where the key needs an argument that a task of this signature does not have."""

    def build(self, arguments: Mapping[str, Any]) -> str:
        """The resource of a call with these bound arguments; `LockKeyError` where one has no stable form."""


def compile_key(spec: object, task_name: str = "", option: str = "key") -> KeySpec:
    """The compiled form of a key: None, a template or constant, a sequence of argument names, or a callable.

    ``task_name``: the scope of argument names; a mere check needs none. ``option``: the key's name in errors;
    ``"idempotency_key"`` stands beneath the task's name, so its template may be nothing but values. Raises
    `LockConfigError`.
    """
    if spec is None:
        return _Arguments(None, task_name, option)
    if isinstance(spec, str):
        return _text(str.__str__(spec), option)
    if isinstance(spec, (list, tuple)):
        return _Arguments(_argument_names(spec, option), task_name, option)
    if callable(spec):
        return _Computed(spec, option)
    raise LockConfigError(
        f"{option} must be a template such as 'order:{{order_id}}', a sequence of argument names or a callable, "
        f"not of type {type(spec).__qualname__}"
    )


def _text(text: str, option: str) -> KeySpec:
    template = _Templated(text, option)
    literal = template.literal
    if not literal.strip() and not (option == "idempotency_key" and template.fields):
        if not template.fields:
            raise LockConfigError(f"{option} is empty; one lock for the whole task is written ()")
        raise LockConfigError(
            f"{option}: the template is nothing but values, which another resource could have too; put its kind in "
            f"front, as in 'order:{{{template.fields[0].text}}}'"
        )
    try:
        literal.encode()
    except UnicodeEncodeError:
        raise LockConfigError(f"{option}: the text is not valid Unicode") from None
    return template


def _argument_names(spec: Collection[object], option: str) -> tuple[str, ...]:
    chosen: list[str] = []
    for name in spec:
        if not isinstance(name, str) or not name.isidentifier():
            raise LockConfigError(
                f"{option}: a sequence holds names of arguments, as in ('order_id',); a template stands by itself"
            )
        if name in chosen:
            raise LockConfigError(f"{option} names the argument {name!r} twice")
        chosen.append(str.__str__(name))
    return tuple(chosen)


class _Arguments:
    """All arguments (``chosen`` None), the named ones, or with no name one lock for the task; by the task's name."""

    def __init__(self, chosen: tuple[str, ...] | None, task_name: str, option: str) -> None:
        self._chosen = chosen
        self._task_name = task_name
        self._option = option

    def check(self, signature: inspect.Signature) -> None:
        if self._chosen is None and _is_hidden(signature):
            names = ", ".join(map(repr, signature.parameters))
            raise LockConfigError(
                f"{self._option}: {_HIDDEN}, so that one value given by position and by name would give two keys; let "
                f"it use functools.wraps, or say {self._option}=({names}) where the task is meant so"
            )
        _check_names(self._chosen or (), signature, self._option)

    def build(self, arguments: Mapping[str, Any]) -> str:
        if self._chosen == ():
            return f"{self._task_name}:"
        try:
            return scoped(
                self._task_name, encode_arguments(arguments, arguments if self._chosen is None else self._chosen)
            )
        except KeyError as error:
            raise LockKeyError(str(error.args[0]), "the call has no such argument") from None


class _Templated(Template):
    """A template over the arguments, or a constant: a resource that any task may name."""

    def check(self, signature: inspect.Signature) -> None:
        literal = self.literal
        if not self.fields and literal in signature.parameters:
            raise LockConfigError(
                f"{self.option}: {literal!r} is a constant, the same for every call, and an argument's name; write "
                f"['{literal}'] for the argument, or a template such as 'kind:{{{literal}}}'"
            )
        _check_names([field.name for field in self.fields], signature, self.option)


class _Computed:
    """A callable, given those arguments that it has parameters for: what it returns is the resource."""

    def __init__(self, function: Callable[..., object], option: str) -> None:
        self._function = function
        self._option = option
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            raise LockConfigError(f"{option}: the callable's parameters cannot be read; wrap it in a lambda") from None
        if any(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in parameters):
            raise LockConfigError(f"{option}: the callable gets its arguments by name and must not ask for a position")
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._accepts = {p.name for p in named}
        self._needs = [p.name for p in named if p.default is p.empty]
        self._all = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def check(self, signature: inspect.Signature) -> None:
        _check_names(self._needs, signature, self._option)

    def build(self, arguments: Mapping[str, Any]) -> str:
        given = {name: value for name, value in arguments.items() if self._all or name in self._accepts}
        try:
            text = self._function(**given)
        except Exception as error:  # noqa: BLE001  # whatever a user's callable raises
            # Without its traceback: it may show an argument's value.
            raise LockKeyError(self._option, f"the callable failed ({type(error).__name__})") from None
        if not isinstance(text, str):
            kind = "None" if text is None else f"a value of type {type(text).__qualname__}"
            raise LockKeyError(self._option, f"the callable returned {kind}; it must return the resource's text")
        if not text:
            raise LockKeyError(self._option, "the callable returned an empty text, which every such call would share")
        return str.__str__(text)


def _check_names(wanted: Iterable[str], signature: inspect.Signature, option: str) -> None:
    for name in wanted:
        if name not in signature.parameters:
            raise LockConfigError(f"{option} names no argument {name!r}; {_hint(name, signature)}")


def _hint(name: str, signature: inspect.Signature) -> str:
    parameters = signature.parameters
    if _is_hidden(signature):
        return f"{_HIDDEN}, which must use functools.wraps"
    if close := difflib.get_close_matches(name, parameters, 1):
        return f"did you mean {close[0]!r}?"
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return f"what comes in **{parameter.name} is written {{{parameter.name}[{name}]}}"
    return f"the task has {', '.join(map(repr, parameters)) or 'no arguments'}"


_HIDDEN = "the task seems to take only *args and **kwargs: a decorator hides its signature"


def _is_hidden(signature: inspect.Signature) -> bool:
    """Whether the parameters are those of a decorator's wrapper, ``*args`` and ``**kwargs`` and no other."""
    kinds = [p.kind for p in signature.parameters.values()]
    return kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
