"""Methods of other papers in the same interface, and oracles; one file each."""
