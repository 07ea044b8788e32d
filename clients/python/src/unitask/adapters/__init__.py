"""Adapters of frameworks for agents. Each module needs its framework, which is an extra of this package.

pip install 'unitask[smolagents]' brings what unitask.adapters.smolagents needs. The package unitask imports none of
them.
"""
