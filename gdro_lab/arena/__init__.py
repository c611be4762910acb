"""Every method in every world at matched rollouts: play, then tables and figures."""

import importlib.util

# all that playing and reporting need, before hours are spent on the first half
_NEEDED = ("torch", "transformers", "pandas", "tqdm", "matplotlib", "seaborn", "tabulate")
if _missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
    raise ImportError(f"the arena needs {', '.join(_missing)}; pip install 'gdro[train,notebooks]'")
