"""Wheels as untrusted input: their names, their archives, their RECORD, and staging them.

Nothing of a wheel is executed, and nothing of it is written before the whole archive was checked.
"""
