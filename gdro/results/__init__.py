"""Records in; tables and figures out, in one style."""
