"""One small file a command: parse, wire, call, render. Heavy libraries are imported inside the functions."""
