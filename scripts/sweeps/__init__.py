"""Parts of sweep_session.py."""
