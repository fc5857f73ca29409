"""hsops' hands on the host: shipped as one zipapp, run by the server's own Python under ``-I``, stdlib only."""
