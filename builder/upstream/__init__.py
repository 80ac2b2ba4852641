"""Watching upstream: what a new release means for each profile, before anything is compiled."""
