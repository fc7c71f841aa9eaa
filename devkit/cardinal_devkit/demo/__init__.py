"""`cardinal demo`: a whole deployment on one machine, from a development node to a lake, that checks itself.

`cast` starts, kills and stops processes, `ingest` has the ingest nodes, `run` is the course of events, `kills` the
part of it in which two are killed, `check` compares the outcome with the node.
"""
