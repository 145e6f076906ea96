"""The built-in hooks. A new one is a line in `core.hooks.BUILT_IN` and a module here with a function, both of its name
(`base` has the contract).
"""

from importlib import import_module

from watchdog.core import hooks
from watchdog.owner.hooks.base import Hook

BUILT_IN: dict[str, Hook] = {name: getattr(import_module(f"{__name__}.{name}"), name) for name in hooks.BUILT_IN}
