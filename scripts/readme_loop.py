"""Run the loop that README prints: does an installed gdro stand on its own?

python scripts/readme_loop.py, in an environment with nothing but the wheel.
"""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
[LOOP] = re.findall(r"```python\n(from gdro import GDRO.*?)```", README.read_text("utf-8"), re.S)
names: dict = {}
exec(LOOP, names)
print(names["plan"].rollouts.sum(), "rollouts,", len(names["observed"].advantages), "advantages")
