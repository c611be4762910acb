"""GDRO in TRL's GRPOTrainer. Its modules need the packages of the extra `train`."""
