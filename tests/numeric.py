"""Comparing where rounding does not decide: float64 with recordings, float32 with float64 within a measured bound.

How far an evaluation in float32 is from the exact value depends on the order in which a processor adds. So no fixed
bound is asked of it. The formula is evaluated in float64, which every processor does alike, and compared with what was
recorded within the recording's rounding; then it is evaluated in float64 again with the roundings of float32 put in at
random (every operation's operands or result moved by one unit in the last place), which tells how sensitive it is.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map

# Draws of random roundings: few, and many where an evaluation comes near to the bound that the few give: the largest of
# few responses says little of a gradient that almost vanishes.
FEW, MANY = 3, 10
# A kernel's sum of n terms rounds n times, the measurement moves each term once. Errors seen were 0.1 to 1.5 of it.
MULTIPLE = 4
UNIT = torch.finfo(torch.float32).eps
# In float64 this share of what is beside it is nothing but rounding: the terms of such a value cancel.
CANCELLED = 1e-12


class _Float64(TorchDispatchMode):
    """Computes in float64 also where a formula names float32; with a seed, rounds to float32 in random directions."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        schema = func._schema
        is_view = any(value.alias_info and not value.alias_info.is_write for value in schema.returns)
        if self.generator is None or is_view:
            return func(*args, **kwargs)
        written = [each for each, spec in zip(args, schema.arguments, strict=False) if _is_written(spec)]
        if torch.Tag.pointwise not in func.tags:
            args = tuple(each if any(each is w for w in written) else tree_map(self._perturb, each) for each in args)
        result = func(*args, **kwargs)
        for each in written:
            if isinstance(each, Tensor):
                each.copy_(self._rounded(each))
        return tree_map(lambda each: each if any(each is w for w in written) else self._rounded(each), result)

    def _perturb(self, value: Any) -> Any:
        """Each element one unit in the last place up or down."""
        if not _is_double(value):
            return value
        signs = 2 * torch.randint(0, 2, value.shape, generator=self.generator) - 1
        return value * (1 + UNIT * signs)

    def _rounded(self, value: Any) -> Any:
        """Each element that float32 cannot hold replaced by one of its neighbours there."""
        if not _is_double(value):
            return value
        single = torch.complex64 if value.is_complex() else torch.float32
        held_out = value.to(single).to(value.dtype) == value
        return torch.where(held_out, value, self._perturb(value).to(single).to(value.dtype))


def _is_written(spec: Any) -> bool:
    return spec.alias_info is not None and spec.alias_info.is_write


def _is_double(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float64, torch.complex128)


def exactly(formula: Callable[..., Any], *inputs: Any, seed: int | None = None) -> Any:
    """A formula evaluated in float64, on copies.

    Args:
        formula: a function of modules and tensors; what it returns may be nested.
        inputs: its arguments; modules and tensors in them, however nested, are copied into float64.
        seed: of roundings to float32 that are put in at random; none by default.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64(seed):
            return formula(*tree_map(_double, inputs))
    finally:
        torch.set_default_dtype(before)


def assert_agrees(
    formula: Callable[..., Any],
    *inputs: Any,
    recorded: Any = None,
    atol: float | None = None,
    rtol: float | None = None,
) -> Any:
    """Assert that a formula in float64 gives what was recorded, and in float32 what it gives in float64.

    Args:
        formula: a function of modules and tensors; what it returns may be nested.
        inputs: its arguments.
        recorded: what it should return; None compares float32 with float64 only.
        atol: stated rounding of the recording; of `atol` and `rtol` the wider one holds.
        rtol: likewise, relative to the recording. Without both the recording is taken as one more evaluation in
            float32, with the bound of ours.

    Returns:
        What the formula gives in float64.
    """
    result = exactly(formula, *inputs)
    exact, actual = _leaves(result), _leaves(formula(*inputs))
    responses = {key: UNIT * size for key, size in _sizes(exact).items()}
    expected = {} if recorded is None else _leaves(recorded)
    stated = not atol is rtol is None
    if recorded is not None:
        assert expected.keys() == exact.keys()
    for seed in range(MANY):
        for key, value in _leaves(exactly(formula, *inputs, seed=seed)).items():
            responses[key] = max(responses[key], _distance(value, exact[key]))
        compared = [actual] if stated or not expected else [actual, expected]
        near = any(
            _distance(value, exact[key]) > MULTIPLE / 2 * responses[key]
            for each in compared
            for key, value in each.items()
        )
        if seed + 1 >= FEW and not near:
            break
    for key, value in expected.items():
        bound = ((rtol or 0) * value.abs()).clamp(min=atol or 0) if stated else MULTIPLE * responses[key]
        _assert_within(exact[key], value, bound, f"recorded{key}")
    for key, value in actual.items():
        _assert_within(value, exact[key], MULTIPLE * responses[key], f"float32{key}")
    return result


def _double(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return deepcopy(value).double()
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def _leaves(value: Any) -> dict[str, Tensor]:
    paths, _ = tree_flatten_with_path(value)
    return {keystr(path): torch.as_tensor(leaf).detach().double() for path, leaf in paths}


def _sizes(leaves: dict[str, Tensor]) -> dict[str, float]:
    """Each leaf's largest magnitude; of one whose terms cancel, which tells nothing of them, the largest beside it."""
    sizes = {key: float(value.abs().max()) for key, value in leaves.items()}
    neighbour: dict[str, float] = {}
    for key, size in sizes.items():
        parent = key.rpartition("[")[0]
        neighbour[parent] = max(neighbour.get(parent, 0.0), size)
    largest = {key: neighbour[key.rpartition("[")[0]] for key in sizes}
    return {key: largest[key] if size <= CANCELLED * largest[key] else size for key, size in sizes.items()}


def _distance(value: Tensor, exact: Tensor) -> float:
    assert value.shape == exact.shape, f"shape {tuple(value.shape)}, expected {tuple(exact.shape)}"
    return float((value - exact).abs().max())


def _assert_within(value: Tensor, expected: Tensor, bound: Tensor | float, name: str) -> None:
    largest = _distance(value, expected)
    share = float(((value - expected).abs() / bound).nan_to_num(nan=0.0).max())
    assert share <= 1, f"{name}: {largest:.3g} apart, {share:.3g} times the bound"
