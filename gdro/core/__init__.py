"""What any method may use: counts, bins, budget, checks, saved state, closed forms. No torch."""
