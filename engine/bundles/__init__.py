"""Bundles of policies in OCI registries: layer, manifest and signatures, and the client that pushes and pulls them.

Only processes that push, pull or follow a bundle import it. What a registry sends is hostile until it is verified: it
is bounded before it is read, and compared with the digest that names it before it is parsed.
"""
