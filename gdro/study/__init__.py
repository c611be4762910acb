"""From a profile to results: what a run is, its jobs, their console, notebooks run strictly."""
