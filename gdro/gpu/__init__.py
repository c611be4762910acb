"""`gdro check`: whether a GPU box trains as it should, and what a profile costs there."""
