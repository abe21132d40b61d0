"""Lengths as expressions: sums, products, quotients, minima and maxima of symbols, in a normal form.

Two dims are equal where their normal forms are. A dim stays an int or a text everywhere else; `expression` reads the text, and
`dim_of` writes it, always in the same way. A text that is no expression of this module is one symbol, whatever letters it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, reduce

import sympy

from onnx_fa.spec.terms import Dim

MAX_LETTERS = 400
"""Letters of a dim's text. A dim that is doubled again and again would have one of any length."""
_MAX_TERMS = 12
"""Terms of a sum, or arguments of a minimum: beyond, nobody reads the name, and a normal form takes long."""
_MAX_MINIMA = 4
"""Minima in an expression whose sign is asked for: each doubles the cases."""
_TOKEN = re.compile(
    r"(?P<number>\d+)(?![^\s()*,])"
    r"|(?P<symbol>[A-Za-z_](?:[^\s(){}*,+/]|/(?!/))*)"
    r"|\{(?P<odd>[^{}]+)\}"
    r"|(?P<op> [+-] |//|\*\*|[()*]|, )"
)
"""A symbol with other letters than a name has stands in braces."""


class _NoExpressionError(ValueError):
    """The text is no expression of this module."""


@lru_cache(maxsize=4096)
def expression(dim: Dim) -> sympy.Expr:
    """The expression that a dim stands for. Symbols are lengths: integers that are never negative."""
    if isinstance(dim, int):
        return sympy.Integer(dim)
    try:
        return _Reader(dim).read()
    except _NoExpressionError:
        return length(dim)


def length(name: str) -> sympy.Symbol:
    """The symbol of a length."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


@lru_cache(maxsize=4096)
def dim_of(expr: sympy.Expr) -> Dim | None:
    """The dim that says an expression; None for one that is too long."""
    normal = sympy.expand(_with_least_floors(sympy.expand(expr)))
    if normal.is_Integer:
        return int(normal)
    if normal.is_Symbol:
        return str(normal.name)
    if len(sympy.Add.make_args(normal)) > _MAX_TERMS:
        return None
    text = _write(normal)
    return None if text is None or len(text) > MAX_LETTERS else text


def _with_least_floors(expr: sympy.Expr) -> sympy.Expr:
    """(n - 3)//2 as (n + 1)//2 - 2: of the number in a quotient only what is left of whole quotients stays there."""
    if not expr.has(sympy.floor):
        return expr

    def least(quotient: sympy.Expr) -> sympy.Expr:
        over, under = sympy.fraction(sympy.together(quotient))
        number, rest = sympy.expand(over).as_coeff_Add()
        if not (number.is_Integer and under.is_Integer):
            return sympy.floor(quotient)
        return sympy.floor((rest + number % under) / under) + number // under

    return expr.replace(sympy.floor, least)


@lru_cache(maxsize=4096)
def is_never_negative(expr: sympy.Expr) -> bool:
    """Whether an expression is at least 0 whatever its symbols are."""
    normal = sympy.expand(expr)
    if normal.is_nonnegative:
        return True
    minima = normal.atoms(sympy.Min)
    if minima:
        return len(minima) <= _MAX_MINIMA and _is_never_negative_of_minima(normal, minima)
    if not normal.has(sympy.floor):
        return False
    # floor(p/q) is no more than p/q, and no less than (p - q + 1)/q.
    least = sympy.Integer(0)
    for term in sympy.Add.make_args(normal):
        number, rest = term.as_coeff_Mul()
        if isinstance(rest, sympy.floor):
            over, under = sympy.fraction(sympy.together(rest.args[0]))
            if not under.is_Integer:
                return False
            rest = over / under if number < 0 else (over - under + 1) / under
        least += number * rest
    return bool(sympy.expand(least).is_nonnegative)


def _is_never_negative_of_minima(normal: sympy.Expr, minima: set[sympy.Min]) -> bool:
    """As `is_never_negative`, by the cases of one of the minima, which stands in no other one."""
    outer = max(minima, key=lambda m: (m.count_ops(), str(m)))
    cases = [is_never_negative(normal.xreplace({outer: argument})) for argument in outer.args]
    if all(cases):
        return True  # it is one of its arguments
    holding = [term for term in sympy.Add.make_args(normal) if term.has(outer)]
    # It is no more than any of its arguments, so that where it is taken away one case will do. Symbols are never negative.
    taken = all(term.as_coeff_Mul()[0] < 0 and outer in sympy.Mul.make_args(term) for term in holding)
    plain = all(f is outer or f.is_Symbol or f.is_Number for term in holding for f in sympy.Mul.make_args(term))
    return taken and plain and any(cases)


class Tail(sympy.Function):  # type: ignore[misc]
    """The length of x[-n:], where x has the first argument's length and n is the second: all of it for n = 0."""

    nargs = 2
    is_integer = True
    is_nonnegative = True


class Widest(sympy.Function):  # type: ignore[misc]
    """The length that axes of the arguments' lengths broadcast to, where they do: the one that is not 1."""

    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, *given: sympy.Expr) -> sympy.Expr | None:
        """The normal form: no argument is a number or broadcasts itself, and none stands there twice."""
        flat = [x for a in given for x in (a.args if isinstance(a, cls) else (a,))]
        number = next((x for x in flat if x.is_Integer and x != 1), None)
        if number is not None:
            return number  # the others are 1 or as long
        wide = sorted({x for x in flat if x != 1}, key=str)
        if len(wide) < 2:
            return wide[0] if wide else sympy.Integer(1)
        return None if tuple(wide) == given else cls(*wide)


_EXTREMES: dict[type[sympy.Expr], str] = {Widest: "broadcast", sympy.Min: "min", sympy.Max: "max"}
"""Functions of several lengths that give one of them, and their names in a text."""


@lru_cache(maxsize=4096)
def smaller_of(*given: sympy.Expr) -> sympy.Expr:
    """The smallest one; which one it is, where that is certain. What all have in common stands outside and no minimum stands in
    another, so that equal minima are written alike."""
    found: list[sympy.Expr] = []
    for expr in (x for a in given for x in _spread(sympy.expand(a))):
        if not any(is_never_negative(expr - other) for other in found):
            found = [other for other in found if not is_never_negative(other - expr)] + [expr]
    if len(found) == 1 or len(found) > _MAX_TERMS:
        return found[0] if len(found) == 1 else sympy.Min(*found, evaluate=False)
    terms = [x.as_coefficients_dict() for x in found]
    shared = sympy.Add(*(min(t[x] for t in terms) * x for x in {x for t in terms for x in t if not x.has(sympy.Min)}))
    return shared + sympy.Min(*(x - shared for x in found), evaluate=False)


def _spread(expr: sympy.Expr) -> list[sympy.Expr]:
    """What a minimum and what is added to it are the minimum of."""
    for term in sympy.Add.make_args(expr):
        if isinstance(term, sympy.Min):
            return [sympy.expand(expr - term + argument) for argument in term.args]
    return [expr]


def larger_of(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The larger one: what the two are together, without the smaller one."""
    return sympy.expand(a + b - smaller_of(a, b))


def _write(expr: sympy.Expr) -> str | None:
    """A sum: what is added in the order of its letters, then what is taken away."""
    added: list[str] = []
    taken: list[str] = []
    for term in sympy.Add.make_args(expr):
        number, rest = term.as_coeff_Mul()
        text = _write_product(abs(number), rest)
        if text is None or not number.is_Integer:
            return None
        (taken if number < 0 else added).append(text)
    return " - ".join([" + ".join(sorted(added)) or "0", *sorted(taken)])


def _write_product(number: sympy.Expr, rest: sympy.Expr) -> str | None:
    factors: list[str] = []
    for factor in sympy.Mul.make_args(rest):
        if factor == 1:
            continue
        base, power = factor.as_base_exp()
        text = _write_atom(base)
        if text is None or not (power.is_Integer and 0 < power <= _MAX_TERMS):
            return None
        factors += [text] * int(power)
    return "*".join([*([] if number == 1 and factors else [str(number)]), *sorted(factors)])


def _write_atom(expr: sympy.Expr) -> str | None:
    if expr.is_Symbol:
        return _write_symbol(str(expr.name))
    if isinstance(expr, Widest | sympy.Min | sympy.Max):
        parts = [_write(sympy.expand(a)) for a in expr.args]
        if None in parts or len(parts) > _MAX_TERMS:
            return None
        name = next(name for kind, name in _EXTREMES.items() if isinstance(expr, kind))
        return f"{name}({', '.join(sorted(p for p in parts if p))})"
    if isinstance(expr, Tail):
        whole, count = (_write(sympy.expand(a)) for a in expr.args)
        return None if whole is None or count is None else f"tail({whole}, {count})"
    if isinstance(expr, sympy.floor):
        over, under = sympy.fraction(sympy.together(expr.args[0]))
        upper, lower = _write(sympy.expand(over)), _write(sympy.expand(under))
        return None if upper is None or lower is None else f"(({upper})//({lower}))"
    return None


def _write_symbol(name: str) -> str | None:
    found = _TOKEN.fullmatch(name)
    if found is not None and found["symbol"]:
        return name
    return None if "{" in name or "}" in name else f"{{{name}}}"


_FUNCTIONS: dict[str, Callable[..., sympy.Expr]] = {
    "min": smaller_of,
    "max": lambda *given: reduce(larger_of, given),
    "tail": Tail,
    "broadcast": Widest,
}


class _Reader:
    """Reads what `dim_of` writes, and sums, products and powers as exporters write them."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LETTERS:
            raise _NoExpressionError(text)
        self._tokens: list[re.Match[str]] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise _NoExpressionError(text)
            self._tokens.append(found)
            at = found.end()
        self._at = 0

    def read(self) -> sympy.Expr:
        found = self._sum()
        if self._at != len(self._tokens):
            raise _NoExpressionError
        return found

    def _next(self, *ops: str) -> str:
        """Takes the next token if it is one of the operators; "" where it is not."""
        if self._at < len(self._tokens) and self._tokens[self._at]["op"] in ops:
            self._at += 1
            return str(self._tokens[self._at - 1]["op"])
        return ""

    def _sum(self) -> sympy.Expr:
        total = self._product()
        while op := self._next(" + ", " - "):
            total = total + self._product() if op == " + " else total - self._product()
        return total

    def _product(self) -> sympy.Expr:
        total = self._power()
        while op := self._next("*", "//"):
            factor = self._power()
            if op == "//" and factor == 0:
                raise _NoExpressionError
            total = total * factor if op == "*" else sympy.floor(total / factor)
        return total

    def _power(self) -> sympy.Expr:
        base = self._atom()
        if not self._next("**"):
            return base
        times = self._atom()
        if not times.is_Integer or not 0 < times <= _MAX_TERMS:
            raise _NoExpressionError
        return base**times

    def _atom(self) -> sympy.Expr:
        if self._next("("):
            return self._closed(self._sum())
        if self._at == len(self._tokens):
            raise _NoExpressionError
        token = self._tokens[self._at]
        self._at += 1
        if token["number"]:
            return sympy.Integer(int(token["number"]))
        if token["odd"]:
            return length(str(token["odd"]))
        if not token["symbol"]:
            raise _NoExpressionError
        function = _FUNCTIONS.get(token["symbol"])
        if function is not None and self._next("("):
            given = [self._sum()]
            while self._next(", "):
                given.append(self._sum())
            if function is Tail and len(given) != 2:
                raise _NoExpressionError
            return self._closed(function(*given))
        return length(str(token["symbol"]))

    def _closed(self, expr: sympy.Expr) -> sympy.Expr:
        if not self._next(")"):
            raise _NoExpressionError
        return expr
