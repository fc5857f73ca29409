"""Results and events for people and for machines. The only package that prints."""
