"""Ranks as processes: start a world, run a program in it, limit its time, say what went wrong, replace it.

The controller (``pool.py``, ``launching.py``) is the pytest process and never imports the implementation's framework.
It starts a launcher (``launcher.py``); that forks a server for each implementation (``server.py``), which imports it
and forks the ranks (``rank.py``). Between them travels plain data (``channel.py``). Under torchrun (``torchrun.py``)
there is one launcher for each process that torchrun has started.
"""

from .failure import RankFailure, RankReport
from .launching import Launcher
from .pool import Implementation, Program, RankSettings, TooManyHangs, World

__all__ = [
    "Implementation",
    "Launcher",
    "Program",
    "RankFailure",
    "RankReport",
    "RankSettings",
    "TooManyHangs",
    "World",
]
