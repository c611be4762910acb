"""What notebooks 01 to 04 measure, draw and ask."""
