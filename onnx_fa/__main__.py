"""`python -m onnx_fa`."""

import sys

from onnx_fa.cli import main

if __name__ == "__main__":
    sys.exit(main())
