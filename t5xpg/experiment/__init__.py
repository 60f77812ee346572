"""An experiment: read from gin, prepared, identified, assembled on devices."""
