"""`python -m specjax.cli` is `specjax`."""

import sys

from specjax.cli.main import main

if __name__ == "__main__":
  sys.exit(main())
