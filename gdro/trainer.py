"""GDROConfig and GDROTrainer, in place of TRL's GRPOConfig and GRPOTrainer; see `gdro.trl`."""

from gdro.trl.config import GDROConfig
from gdro.trl.trainer import GDROTrainer

__all__ = ["GDROConfig", "GDROTrainer"]
