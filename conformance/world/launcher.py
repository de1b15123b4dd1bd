"""The process that the servers are forked from.

It runs in the interpreter of the implementations and imports torch, which takes seconds, once for all of them. For
each implementation it forks a server (``server.py``), which imports that one and forks its ranks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback

from .channel import Channel, ChannelClosed, connect
from .server import serve_implementation


def main(controller: str, token: str, node: str) -> None:
    """Forks a server for each implementation that the controller asks for, until it closes the connection."""
    channel = Channel(connect(controller))
    channel.send({"token": token, "role": "launcher", "node": int(node)})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An implementation that needs torch says so itself when it is loaded without one.
    with contextlib.suppress(ImportError):
        from commhooks.adapters import torch_collectives

        torch_collectives.install()
    with contextlib.suppress(ChannelClosed):
        while True:
            request = channel.receive()
            _reap()
            pid = os.fork()
            if pid == 0:
                channel.close()
                _serve_and_exit(controller, token, node, str(request["implementation"]))
            channel.send({"pid": pid})


def _serve_and_exit(controller: str, token: str, node: str, implementation: str) -> None:
    code = 70
    try:
        serve_implementation(controller, token, node, implementation)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap() -> None:
    """Collects servers that have ended, so that they do not stay as zombies in a long run."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
