"""gdro in verl: found by it through the entry point `verl.plugins` (docs/verl.md)."""
