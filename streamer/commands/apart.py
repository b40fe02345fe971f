"""Functions that run in a process of their own, as what they call may crash or hang, or has its memory measured."""

import json
import sys


def apart(function: str) -> list[str]:
    """Return the command line of a process that calls a function, such as `streamer.commands.doctor:answer`."""
    module, _, name = function.partition(":")
    code = "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    code += f"from {module} import {name}\n{name}()"
    return [sys.executable, "-I", "-c", code, json.dumps(sys.path)]
