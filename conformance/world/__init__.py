"""Ranks as processes: start a world, run a program in it, limit its time, say what went wrong, replace it.

The controller (``pool.py``) is the pytest process and never imports the implementation's framework. It starts a
launcher (``launcher.py``), that forks a server for each implementation (``server.py``), and that one imports the
implementation and forks the ranks (``rank.py``). Between them travels plain data (``channel.py``).
"""

from .failure import RankFailure, RankReport
from .pool import Implementation, Launcher, Program, RankSettings, TooManyHangs, World

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
