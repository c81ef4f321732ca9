"""docs/models.md says what the tests before this one saw, and nothing else."""

import os

import pytest
from page import COLUMNS, PAGE, SEEN, all_seen, written


@pytest.mark.tail
@pytest.mark.skipif(SEEN not in os.environ, reason="`make tail-parity` runs this behind the others")
def test_the_page_says_what_was_seen() -> None:
    seen = all_seen()
    missing = [family for family, found in seen.items() if any(column not in found for column in COLUMNS)]
    assert not missing, "not run, or failed"
    text = written(seen)
    if os.environ.get("PENSTOCK_WRITE_DOCS"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "PENSTOCK_WRITE_DOCS=1 make tail-parity writes docs/models.md anew"
