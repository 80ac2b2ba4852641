"""Accepting a runtime on a host with GPUs: see ``scripts/gpu_acceptance.py``."""
