"""Diffusion between ingest nodes: links over TCP on which a node pulls the bodies that it lacks.

Contents: `objects` are blocks as the protocol names them, `shelf` is what a node can serve, `serving` serves it to
peers that dial this node, `fetching` dials peers and fetches from them. `settings` has the limits of both, `counts`
what became of them. `service` is all of it together.

The node that dials is the client, on a connection of its own; a connection carries the messages of
:mod:`cardinal_ingest.protocols.diffusion`, which delimit themselves, and nothing else.
"""
