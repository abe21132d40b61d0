"""The text of a GPU kernel as a host program, so that what it computes can be checked without a GPU.

Workgroups become a loop, dispatches calls, and lowering configs fall away; every op stays as it is. How the GPU pipeline spreads
them over threads is not checked by this.
"""

from __future__ import annotations

import re

_DISPATCH_TENSOR = r"!iree_tensor_ext\.dispatch\.tensor<(?:readonly|writeonly):(tensor<[^>]*>)>"


def host_text(text: str) -> str:
    """`text` without its executables: their functions are called instead."""
    functions = []
    for executable in re.findall(
        r"^flow\.executable private .*?^func\.func .*?^return\n\}\n\}\n\}$", text, re.M | re.S
    ):
        functions.append(_function(executable))
        text = text.replace(executable, "")
    for name, args, types, out in re.findall(
        r"flow\.dispatch @(\w+)::@\w+(?:\[.*?\])?\((.*?)\) : \((.*?)\) -> (tensor<[^>]*>)", text
    ):
        old = next(line for line in text.splitlines() if f"flow.dispatch @{name}::" in line)
        result = old.partition(" = ")[0]
        types, out = (re.sub(r"\{[^}]*\}", "", t) for t in (types, out))
        text = text.replace(old, f"{result} = util.call @{name}({args}) : ({types}) -> {out}")
    return "\n".join([*functions, text])


def _function(executable: str) -> str:
    lines = executable.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("func.func"))
    head = re.sub(r" attributes \{translation_info = .*\} \{$", " {", lines[start])
    name, arguments = re.fullmatch(r"func\.func @(\w+)\((.*)\) \{", head).groups()  # type: ignore[union-attr]
    kept, out = [], ""
    for argument in re.split(r", (?=%)", arguments):
        value, _, type_ = argument.partition(": ")
        tensor = re.fullmatch(_DISPATCH_TENSOR, type_)
        if tensor and "writeonly" in type_:
            out = tensor[1]
        else:
            kept.append(f"{value}: {tensor[1] if tensor else type_}")
    body = [f"util.func private @{name}({', '.join(kept)}) -> {out} {{", "%one = arith.constant 1 : index"]
    body.append("%none = arith.constant 0 : index")
    for line in lines[start + 1 :]:
        line = re.sub(r"attrs = \{lowering_config = #iree_gpu\.lowering_config<\{.*?\}>\} ", "", line)
        if found := re.match(r"(%\w+) = iree_tensor_ext\.dispatch\.workload\.ordinal (%\w+), \d+ : index", line):
            body.append(f"{found[1]} = arith.addi {found[2]}, %none : index")
        elif found := re.match(rf"(%\w+) = flow\.dispatch\.tie_shape (%\w+) : {_DISPATCH_TENSOR}", line):
            if found[2] != "%out_arg" and found[2] != "%vt_arg":
                body.append(f"{found[1]} = tensor.cast {found[2]} : {found[3]} to {found[3]}")
        elif found := re.match(r"(%\w+) = iree_tensor_ext\.dispatch\.tensor\.load (%\w+), .* -> (\S+)$", line):
            body.append(f"{found[1]} = tensor.cast {found[2]} : {found[3]} to {found[3]}")
        elif line.startswith("iree_tensor_ext.dispatch.tensor.store"):
            body += [f"util.return %result : {out}", "}"]
            break
        elif found := re.match(
            r"%result = scf\.forall \((%\w+)\) in \((%\w+)\) shared_outs\((%\w+) = (%\w+)\) -> \((.*)\) \{", line
        ):
            body.append(
                f"%result = scf.for {found[1]} = %none to {found[2]} step %one iter_args({found[3]} = {found[4]}) "
                f"-> ({found[5]}) {{"
            )
        elif line == "scf.forall.in_parallel {":
            continue
        elif found := re.match(r"tensor\.parallel_insert_slice (.*)$", line):
            body += [f"%done = tensor.insert_slice {found[1]}", f"scf.yield %done : {found[1].rpartition(' into ')[2]}"]
        elif line == "}" and body[-1].startswith("scf.yield %done"):
            continue
        elif line.startswith("} {mapping"):
            body.append("}")
        else:
            body.append(line)
    return "\n".join(body)
