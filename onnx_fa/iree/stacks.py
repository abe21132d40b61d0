"""What a dispatch may keep on the stack of the thread that runs it."""

from __future__ import annotations

from onnx_fa.errors import CompileError
from onnx_fa.iree.inspect import Inspection

STACK_BYTES = 131072 - 4096
"""What a workgroup may keep on a runtime worker's stack (--task_worker_stack_size), less some for calls and spills."""


def check_stacks(inspection: Inspection) -> None:
    """Raises CompileError for a dispatch that no worker of the IREE runtime could run."""
    for name, stack in inspection.stacks.items():
        if stack is not None and stack > STACK_BYTES:
            raise CompileError(
                f"dispatch {name} needs {stack} bytes of stack, more than a worker of the IREE runtime has: "
                "a call would end without a message; compile with other --iree-llvmcpu flags"
            )
