"""Brings dumps home: plan what is missing, pull it over several streams, believe nothing that was not checked."""
