"""Run the loop that README prints, with random rewards: does an installed gdro stand on its own?

python scripts/readme_loop.py, in an environment with nothing but the wheel.
"""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[1] / "README.md"
[LOOP] = re.findall(r"```python\n(from gdro import GDRO.*?)```", README.read_text("utf-8"), re.S)
rng = np.random.default_rng(0)
names = {
    "all_uids": [f"prompt {n}" for n in range(64)],
    "sample_and_reward": lambda group_ids_R: rng.random(len(group_ids_R)) < 0.4,
}
exec(LOOP, names)
print(names["plan"].rollouts.sum(), "rollouts,", len(names["observed"].advantages), "advantages")
