"""``python -m kvtwin.experiments.command_line`` is the command ``kvtwin``, also where no script is installed.

Worker processes import this module again, so that nothing may run then.
"""

import sys

from kvtwin.experiments.command_line.entry import main

if __name__ == "__main__":
    sys.exit(main())
