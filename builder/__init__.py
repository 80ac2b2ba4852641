"""Builds runtime wheels inside a pinned container from locked inputs."""

__version__ = "0.1.0"
