"""The laboratory: what teaches and measures GDRO. What people import to train is `gdro`."""
