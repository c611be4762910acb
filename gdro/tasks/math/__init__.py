"""Math data sets, and a reward that compares answers."""
