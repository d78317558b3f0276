"""The wire between a server and its devices: HTTPS, made of standard parts.

docs/protocol.md is for devices in any language.
"""
