"""What a function takes: its parameters, each either the carrier or a state field with a type.

Annotations may be texts (`from __future__ import annotations`), also of classes that are local to the function in which
the task is declared. `inspect` and `typing` do the reading; this is the only place that knows how.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from dwarf.errors import InvalidArgument
from dwarf.flow import Flow
from dwarf.state import name_of, reader

_flow_by_name = re.compile(r"""["']?([\w.]+\.)?Flow( *\| *None)?["']?""")


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a task. A field is decoded as `type`; where it is absent `default` is passed, unless it is required."""

    name: str
    by_keyword: bool = False
    is_flow: bool = False
    type: Any = Any
    default: Any = None
    is_required: bool = False


def is_async(function: Callable[..., Any], what: str) -> bool:
    """Tell whether a call of `function` must be awaited. Raises `InvalidArgument` for what cannot be a task at all."""
    import inspect

    if isinstance(function, type):
        raise InvalidArgument(f"{what}: the class {function.__name__} is no task; register a function, or an object that can be called")
    if not callable(function):
        raise InvalidArgument(f"{what}: {type(function).__name__} cannot be called")
    code = _code_of(function)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise InvalidArgument(f"{what}: {_name(function)} is a generator; a task returns its changes and yields nothing")
    return inspect.iscoroutinefunction(code)


def read_parameters(function: Callable[..., Any], what: str) -> tuple[Parameter, ...]:
    """Return the parameters in the order they are passed. Raises `InvalidArgument` naming the one that cannot be filled."""
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidArgument(f"{what}: the parameters of {_name(function)} are unknown: {error}") from None
    bound = function.keywords.keys() if isinstance(function, partial) else ()
    given = [parameter for name, parameter in signature.parameters.items() if name not in bound]
    if given and all(parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD} for parameter in given):
        return (Parameter(given[0].name, is_flow=True),)  # takes whatever it is given: the carrier
    given = [place for place in given if not _keeps_its_default(place) or place is given[0]]
    resolve = _Annotations(function)
    read = [_read(parameter, resolve, f"{what}: parameter {parameter.name!r}") for parameter in given]
    bare = [parameter.name for parameter in given if parameter.annotation is parameter.empty]
    for parameter in given:
        if _keeps_its_default(parameter):
            raise InvalidArgument(
                f"{what}: parameter {parameter.name!r} has a default but no annotation;"
                f" annotate it with the type of the state field it is to receive, or with Flow"
            )
    annotated = [parameter.name for parameter, raw in zip(read, given, strict=True) if parameter.is_flow and raw.name not in bare]
    for name in bare[0 if annotated else 1 :]:
        first = (annotated or bare)[0]
        raise InvalidArgument(
            f"{what}: parameter {name!r} has no annotation and {first!r} receives the Flow already;"
            f" annotate {name!r} with the type of the state field it is to receive"
        )
    return tuple(read)


def _keeps_its_default(parameter: Any) -> bool:
    """Tell whether a parameter is none of ours: without annotation and with a default, as in `lambda flow, n=n: …`."""
    return parameter.annotation is parameter.empty and parameter.default is not parameter.empty


def _read(parameter: Any, resolve: _Annotations, what: str) -> Parameter:
    """Read one parameter of a signature."""
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        raise InvalidArgument(f"{what} takes any number of values; a task names the fields that it reads")
    by_keyword = parameter.kind is parameter.KEYWORD_ONLY
    if parameter.annotation is parameter.empty:
        return Parameter(parameter.name, by_keyword, is_flow=True)
    kind = resolve.type_of(parameter.name, parameter.annotation, what)
    if _is_flow(kind):
        return Parameter(parameter.name, by_keyword, is_flow=True)
    _check_readable(kind, what)
    if parameter.default is not parameter.empty:
        return Parameter(parameter.name, by_keyword, type=kind, default=parameter.default)
    return Parameter(parameter.name, by_keyword, type=kind, is_required=not _allows_none(kind))


class _Annotations:
    """The annotations of one function, read where the function stands."""

    def __init__(self, function: Callable[..., Any]) -> None:
        import inspect

        while isinstance(function, partial):
            function = function.func
        self._function = inspect.unwrap(_code_of(inspect.unwrap(function)))
        self._names: dict[str, Any] | None = None

    def type_of(self, name: str, annotation: Any, what: str) -> Any:
        """Return the type that an annotation stands for. Raises `InvalidArgument` when it names something unknown."""
        if self._names is None:
            self._names = _names_around(self._function)
        holder = _Holder({name: annotation})
        try:
            found = get_type_hints(holder, getattr(self._function, "__globals__", {}), self._names, include_extras=True)
            return found[name]
        except Exception as error:
            if isinstance(annotation, str) and _flow_by_name.fullmatch(annotation):
                return Flow  # imported for type checkers only
            raise InvalidArgument(f"{what} is annotated {annotation!r}, which cannot be resolved: {error}") from None


class _Holder:
    """Something with annotations, the way `typing.get_type_hints` wants it."""

    def __init__(self, annotations: dict[str, Any]) -> None:
        self.__annotations__ = annotations


def _names_around(function: Any) -> dict[str, Any]:
    """Return the local names that a function's text could see: what it closes over, and the functions around it still running."""
    names: dict[str, Any] = {}
    for frame in _frames_around(getattr(function, "__code__", None)):
        names = {**frame.f_locals, **names}
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(function.__code__.co_freevars if cells else (), cells, strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return names


def _frames_around(code: Any) -> Iterator[FrameType]:
    """Yield the running frames of the functions that enclose a function's code, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and code is not None:
        if any(constant is code for constant in frame.f_code.co_consts) and frame.f_locals is not frame.f_globals:
            yield frame
            code = frame.f_code
        frame = frame.f_back


def _code_of(function: Any) -> Any:
    """Return the function behind a partial, or behind an object that can be called."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__code__") else type(function).__call__


def _is_flow(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _is_flow(get_args(kind)[0])
    if get_origin(kind) in {Union, UnionType}:
        return any(_is_flow(part) for part in get_args(kind))
    return isinstance(kind, type) and issubclass(kind, Flow)


def _allows_none(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _allows_none(get_args(kind)[0])
    return kind is None or kind is type(None) or (get_origin(kind) in {Union, UnionType} and type(None) in get_args(kind))


def _check_readable(kind: Any, what: str) -> None:
    from msgspec import inspect

    try:
        reader(kind)
        is_readable = not isinstance(inspect.type_info(kind), inspect.CustomType)
        why = "state values are read as plain types, Structs, dataclasses and the like"
    except (TypeError, NameError) as error:
        is_readable, why = False, str(error)
    if not is_readable:
        raise InvalidArgument(f"{what} is annotated {name_of(kind)}, which no state value can be read as: {why}")


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
