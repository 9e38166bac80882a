# SPDX-License-Identifier: Apache-2.0
"""Settings that an engine's configuration hands over as JSON has them."""
from typing import Any


def setting(who: str, given: "dict[str, Any]", name: str, default: Any, kind: type, least: float = 0) -> Any:
    """given[name], or the default, as a `kind`. ValueError, one line: not of that kind, or a number below `least`."""
    value = given.get(name, default)
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or isinstance(value, bool) != (kind is bool):
        raise ValueError(f"{who}: {name} is {value!r}; it wants {'true or false' if kind is bool else kind.__name__}")
    if kind in (int, float) and value < least:
        raise ValueError(f"{who}: {name} is {value}; at least {least}")
    return kind(value)
