"""`cardinal demo`: a whole deployment on one machine, from a development node to a lake, that checks itself.

`cast` starts and stops what takes part, `run` is the course of events, `check` compares the outcome with the node.
"""
