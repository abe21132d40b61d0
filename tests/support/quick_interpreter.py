"""Triton's interpreter without what it does for nothing: two thirds of its time. Imported after TRITON_INTERPRET is set, and before
a kernel is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from triton.language import core
from triton.runtime import interpreter


def quicken() -> None:
    """Integers are not added up once more in 64 bits for an assertion that is only made in debug mode, which is off; Triton's
    functions are replaced by interpreted ones once for each launch and function, not once for each call of a function; and what is
    known of a shape, or of an element type, is looked up."""
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
    replaced = set[Any]()
    launch = interpreter.GridExecutor.__call__

    def launch_anew(self: Any, *args: Any, **kwargs: Any) -> None:
        replaced.clear()  # a launch puts Triton's own functions back when it ends
        launch(self, *args, **kwargs)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in replaced:
            replaced.add(self.fn)
            interpreter._patch_lang(self.fn)
        run: Callable[..., Any] = self.rewrite()
        try:
            return run(*args, **kwargs)
        except Exception as e:
            raise interpreter.InterpreterError(repr(e)) from e

    interpreter.GridExecutor.__call__ = launch_anew
    interpreter.InterpretedFunction.__call__ = call
    interpreter._patch_attr = _patch_attr
    _look_types_up()


def _patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """As the interpreter's own, without a look for the semantic that is given in any case."""
    unchecked = getattr(member, "__wrapped__", member)
    semantic = interpreter.interpreter_semantic

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return unchecked(*args, **kwargs)

    scope.set_attr(obj, name, call)


def _look_types_up() -> None:
    """Each value of a kernel has a type, and each type a shape: of the same few numbers, and Triton makes five objects of them."""
    make_type, make_tensor, find = core.block_type.__init__, core.tensor.__init__, interpreter._get_np_dtype
    of_type = dict[tuple[Any, ...], tuple[Any, ...]]()
    of_tensor = dict[tuple[Any, ...], tuple[Any, ...]]()
    of_element = dict[str, Any]()

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = tuple([s.value if type(s) is core.constexpr else s for s in shape])
        known = of_type.get(key)
        if known is None:
            make_type(self, element_ty, shape)
            of_type[key] = self.shape, self.numel, str(self.shape)
        else:
            self.element_ty = element_ty
            self.shape, self.numel, said = known
            self.name = f"<{said}, {element_ty}>"

    def tensor(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape.values) if type.is_block() else ()
        known = of_tensor.get(key)
        if known is None:
            make_tensor(self, handle, type)
            of_tensor[key] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known

    def element(type: Any) -> Any:
        name = type.scalar.name
        if name not in of_element:
            of_element[name] = find(type)
        return of_element[name]

    interpreter._get_np_dtype = element
    core.block_type.__init__ = block_type
    core.tensor.__init__ = tensor
