"""How a hook says what it claims and how its state is made, and a completed future."""

from torch.futures import Future


def completed(tensor):
    future = Future()
    future.set_result(tensor)
    return future


def claims(*names):
    def mark(hook):
        hook.commhooks_claims = set(names)
        return hook

    return mark


def made_by(factory):
    def mark(hook):
        hook.commhooks_state = factory
        return hook

    return mark


def misses_by(error):
    def mark(hook):
        hook.commhooks_error = error
        return hook

    return mark
