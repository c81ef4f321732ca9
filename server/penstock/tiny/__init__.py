"""The model that ships with Penstock: how it is made, and (in `model/`) what is served.

`python -m penstock.tiny.train` (`make model`) makes the whole folder from generated text alone. Nothing of the
serving path imports this package; it only finds the folder `model/` beside this file.
"""

from pathlib import Path

MODEL = Path(__file__).parent / "model"
