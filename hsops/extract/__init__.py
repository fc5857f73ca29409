"""Drives prompts through a server until the manifest has a line for each."""
