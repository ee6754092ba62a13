"""Finding the App or Graph that a command names: `MODULE:ATTRIBUTE[:URL]`, looked up from the working directory."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

from dwarf.errors import InvalidArgument
from dwarf.graph import Graph
from dwarf.hosts.app import App


def load_target(target: str) -> tuple[App | None, Graph, str]:
    """Return the App (None when the attribute is a graph itself), the graph, and its URL.

    Raises `InvalidArgument` naming the part of `target` that leads nowhere.
    """
    module_name, _, rest = target.partition(":")
    attribute, _, url = rest.partition(":")
    if not module_name or not attribute:
        raise InvalidArgument(
            f"{target!r} names no App: write MODULE:ATTRIBUTE or MODULE:ATTRIBUTE:URL, such as examples.checkout:app:checkout"
        )
    found = _attribute(module_name, attribute)
    if isinstance(found, Graph):
        return None, found, url or found.name
    if not isinstance(found, App):
        raise InvalidArgument(f"{module_name}:{attribute} is {type(found).__name__}, neither an App nor a Graph")
    known = sorted(found.graphs)
    if not url and len(known) == 1:
        url = known[0]
    if url not in known:
        place = f"{module_name}:{attribute}"
        if not url and known:
            raise InvalidArgument(f"{place} has {len(known)} graphs; name one: {' or '.join(f'{place}:{one}' for one in known)}")
        raise InvalidArgument(f"{place} has no graph {url!r}; it has {', '.join(known) or 'none'}")
    return found, asyncio.run(found.load_graph(url)), url


def _attribute(module_name: str, attribute: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    if module_name.startswith(".") or "/" in module_name or module_name.endswith(".py"):
        raise InvalidArgument(f"{module_name!r} is no module name: write it as in an import, such as examples.checkout")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise InvalidArgument(f"there is no module {error.name!r} here") from None
        raise
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise InvalidArgument(f"module {module_name!r} has no {attribute!r}") from None
