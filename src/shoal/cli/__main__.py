"""`python -m shoal.cli` is `shoal`."""

from __future__ import annotations

from shoal.cli.app import main

if __name__ == "__main__":
    main()
