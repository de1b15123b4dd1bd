"""Starts the launcher in any interpreter, also in one where commhooks is not installed.

``python bootstrap.py CONTROLLER TOKEN NODE``
"""

import os
import sys
import types

if __name__ == "__main__":
    # The folder that holds conformance/ and adapters/ serves as the package `commhooks`, installed or not.
    here = os.path.dirname(os.path.abspath(__file__))
    package = types.ModuleType("commhooks")
    package.__path__ = [os.path.dirname(os.path.dirname(here))]
    sys.modules["commhooks"] = package
    # The user's working directory comes first, as with `python -m`, so that --impl finds a module that lies there.
    sys.path[0] = os.getcwd()
    from commhooks.conformance.world.launcher import main

    main(*sys.argv[1:])
