"""From records to tables and figures, in one style."""
