"""hsops: hidden-state capture in SGLang, operated over SSH."""

__version__ = "0.1.0"
