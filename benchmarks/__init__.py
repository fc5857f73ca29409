"""Figures by ratio, inside one run, interleaved, with medians: absolute times of a shared machine mean little."""
