"""Ranks as processes: start a world, run a program in it, limit its time, say what went wrong, replace it.

The controller (``pool.py``) is the pytest process and never imports the implementation's framework. It starts one
server for each implementation (``server.py``), which imports the implementation and forks the ranks (``rank.py``).
Between them travels plain data (``channel.py``).
"""

from .failure import RankFailure, RankReport
from .pool import Implementation, Program, RankSettings, TooManyHangs, World

__all__ = ["Implementation", "Program", "RankFailure", "RankReport", "RankSettings", "TooManyHangs", "World"]
