"""What a rank runs: functions that get the adapter and plain data, call the implementation, and return plain data.

They import numpy and the standard library only, so that a rank can be any interpreter with any framework.
"""
