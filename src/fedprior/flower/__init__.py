"""A real federation: the same methods at sites that never meet, over Flower or any other transport.

A site is a stack of one client; the server is the engine with a runner whose jobs are done elsewhere. Only `messages`,
`client_app` and `server_app` import Flower.
"""
