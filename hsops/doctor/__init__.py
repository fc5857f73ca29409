"""``hsops doctor``: what a launch will stand on, judged before anything is started."""
