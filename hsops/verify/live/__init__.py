"""``hsops verify --live``: is what the running server captures what its model computes?"""
