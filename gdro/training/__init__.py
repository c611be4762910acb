"""What trainer and loop are built on: models, savings, checkpoints, files, processes."""
