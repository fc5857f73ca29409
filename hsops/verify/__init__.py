"""Checks dumps here: files against their manifest, values against what a model can compute."""
