"""`python -m gofer` is `gofer`."""

import sys

from gofer.cli import main

sys.exit(main())
