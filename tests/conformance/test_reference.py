"""The oracle itself: fixed examples worked out by hand, and the bounds it claims."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.conformance import cases, data, reference
from tests.conformance.cases import COMPLEX, FLOAT8S, FLOATS


def _carriers(rows: list[list[float]], dtype: str) -> list[np.ndarray]:
    return [
        data.to_carrier(torch.tensor(row, dtype=data.torch_dtype(dtype)), dtype) for row in rows
    ]


def _reduced(rows: list[list[float]], dtype: str, redop: str) -> list[float]:
    bits = reference.reduce(_carriers(rows, dtype), dtype, redop).bits
    return data.to_tensor(bits, dtype).tolist()


def test_half_types_round_once() -> None:
    # 256 + 1 + 1: a sum kept in bf16 (8 bits) would lose both ones.
    assert _reduced([[256.0], [1.0], [1.0]], "bfloat16", "SUM") == [258.0]
    # The sum leaves fp16's range, the average does not.
    assert _reduced([[65504.0], [65504.0]], "float16", "AVG") == [65504.0]


def test_the_order_is_that_of_the_ranks() -> None:
    rows = [[1e8], [1.0], [-1e8]]
    assert _reduced(rows, "float32", "SUM") == [0.0]
    assert _reduced([rows[0], rows[2], rows[1]], "float32", "SUM") == [1.0]


def test_integers_wrap_and_their_average_truncates() -> None:
    assert _reduced([[127, -128], [1, -1]], "int8", "SUM") == [-128, 127]
    assert _reduced([[16], [16]], "uint8", "PRODUCT") == [0]
    assert _reduced([[-3, 127], [-4, 127]], "int8", "AVG") == [-3, 127]


def test_minimum_and_maximum_propagate_nan() -> None:
    for redop in ("MIN", "MAX"):
        assert np.isnan(_reduced([[1.0], [float("nan")], [2.0]], "float32", redop)).all()


def test_bool_is_logical() -> None:
    rows = [[True, True, False], [True, False, False]]
    assert _reduced(rows, "bool", "SUM") == _reduced(rows, "bool", "MAX") == [True, True, False]
    assert _reduced(rows, "bool", "PRODUCT") == _reduced(rows, "bool", "MIN")
    assert _reduced(rows, "bool", "MIN") == [True, False, False]


def test_the_factor_is_rounded_to_the_type_it_is_used_in() -> None:
    assert _reduced([[2.0], [1.0]], "float32", "PREMUL_NUMBER") == [
        float(np.float32(2) * np.float32(0.3) + np.float32(0.3))
    ]


def test_float8_is_rounded_once_as_torch_does() -> None:
    assert _reduced([[16.0], [1.0], [1.0]], "float8_e4m3fn", "SUM") == [18.0]
    assert _reduced([[448.0], [448.0]], "float8_e4m3fn", "AVG") == [448.0]
    assert _reduced([[57344.0], [57344.0]], "float8_e5m2", "SUM") == [float("inf")]


def test_bitwise_operations() -> None:
    rows = [[0b1110], [0b0111]]
    assert _reduced(rows, "uint16", "BAND") == [0b0110]
    assert _reduced(rows, "uint16", "BOR") == [0b1111]
    assert _reduced(rows, "uint16", "BXOR") == [0b1001]
    assert _reduced([[True], [True], [True]], "bool", "BXOR") == [True]


def test_complex_numbers_multiply_as_such() -> None:
    rows = [[1 + 2j], [3 - 1j], [1j]]
    for dtype in COMPLEX:
        torch_dtype = data.torch_dtype(dtype)
        tensors = [torch.tensor(row, dtype=torch.complex64).to(torch_dtype) for row in rows]
        carriers = [data.to_carrier(tensor, dtype) for tensor in tensors]
        bits = reference.reduce(carriers, dtype, "PRODUCT").bits
        assert data.to_tensor(bits, dtype).to(torch.complex64).tolist() == [-5 + 5j]


@pytest.mark.parametrize(
    ("dtype", "redop"),
    [(dtype, redop) for dtype in (*FLOATS, *FLOAT8S, *COMPLEX) for redop in cases.redops(dtype)],
)
def test_results_are_within_their_bound_of_fp64(dtype: str, redop: str) -> None:
    kind = data.kind_of(dtype, redop)
    inputs = [data.values(dtype, kind, 20_000, seed=5, rank=rank) for rank in range(5)]
    result = reference.reduce(inputs, dtype, redop)
    assert result.near is not None
    assert result.bound is not None
    found = data.widen(*data.parts(result.bits, dtype), np.float64)
    with np.errstate(invalid="ignore"):
        assert not (np.abs(found - result.near) > result.bound).any()
    # A product of complex numbers mixes the special values of twice as many parts.
    assert np.isfinite(result.bound).mean() > 0.8, "the bound says too little"


def test_every_rank_has_its_own_data() -> None:
    for dtype in cases.MOVED_DTYPES:
        parts = {data.values(dtype, "bits", 64, seed=3, rank=rank).tobytes() for rank in range(8)}
        assert len(parts) == 8, dtype


def test_the_matrix_is_as_large_as_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TEST_ALL", "0")
    assert sum(len(cases.selection(*pair)) for pair in cases.pairs()) >= 1_000
    monkeypatch.setenv("TIDEGATE_TEST_ALL", "1")
    assert sum(len(cases.selection(*pair)) for pair in cases.pairs()) >= 5_000


def test_the_slice_covers_every_dtype_and_reduce_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TEST_ALL", "0")
    taken = [case for pair in cases.pairs() for case in cases.selection(*pair)]
    assert {case.dtype for case in taken} == set(cases.MOVED_DTYPES)
    pairs = {(case.dtype, case.redop) for case in taken if case.redop}
    assert pairs == {(d, r) for d in cases.REDUCED_DTYPES for r in cases.redops(d)}
    assert {case.ranks for case in taken} == set(cases.RANKS)
    assert {case.count_name for case in taken} == set(cases.COUNTS)
