"""What a payload means on a chain. An application is data; :mod:`cardinal.apps.evm` is one.

An application never touches a transport.
"""
