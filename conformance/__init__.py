"""The conformance suite: checks any implementation of DDP communication hooks, clause by clause, on real ranks."""
