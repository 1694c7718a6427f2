"""``python -m tokenpaths``: the command line."""

import sys

from tokenpaths.cli.main import main

sys.exit(main())
