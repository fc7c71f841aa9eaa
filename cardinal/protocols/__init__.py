"""The protocols, one pure package each: bytes and values in, bytes and values out.

Nothing below this package reads a clock, a socket, the environment or a random number; time and randomness
are arguments. A protocol package depends on the standard library's pure parts, :mod:`cardinal.errors` and, for
its codec, fastavro.
"""
