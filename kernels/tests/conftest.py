"""Before anything imports Triton."""

import interpreter  # noqa: F401
