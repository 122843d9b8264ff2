from __future__ import annotations

import pytest
import torch

from analytics.errors import IdError, SeqscaleError
from training.embeddings.ids import checked_ids, distinct


def checked(ids: torch.Tensor) -> torch.Tensor:
    return checked_ids(ids, table="items", num_rows=100, step=12, column="item_id")


def test_an_id_too_large_is_named_with_its_column_table_and_batch() -> None:
    with pytest.raises(IdError) as caught:
        checked(torch.tensor([5, 99, 100, 7, 2**40]))
    message = str(caught.value)
    assert message.startswith("batch of step 12, column 'item_id', table 'items': ")
    assert "id 100 at place 2 is too large; the table has 100 rows, ids 0 to 99" in message
    assert "2 of the batch's 5 ids are outside" in message
    assert "raise the table's num_rows" in message


def test_a_negative_id_is_an_error_and_not_a_row_from_the_end() -> None:
    with pytest.raises(IdError, match=r"id -1 at place 1 is negative"):
        checked(torch.tensor([[0], [-1]]))


def test_the_error_is_a_users_and_an_index_error() -> None:
    assert issubclass(IdError, SeqscaleError) and issubclass(IdError, IndexError)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_narrower_whole_numbers_are_widened(dtype: torch.dtype) -> None:
    ids = checked(torch.tensor([0, 99], dtype=dtype))
    assert ids.dtype == torch.int64
    assert ids.tolist() == [0, 99]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool])
def test_other_types_are_refused_even_when_empty(dtype: torch.dtype) -> None:
    with pytest.raises(IdError, match=r"column 'item_id'.* the ids are (float|bool).*\.long\(\)"):
        checked(torch.zeros(0, dtype=dtype))


def test_the_bounds_themselves_and_no_ids_are_legal() -> None:
    assert checked(torch.tensor([0, 99])).tolist() == [0, 99]
    assert checked(torch.zeros(0, dtype=torch.int32)).dtype == torch.int64


def test_distinct_ids_ascend_and_lead_back() -> None:
    ids_U, inverse_N = distinct(torch.tensor([7, 3, 7, 0]))
    assert ids_U.tolist() == [0, 3, 7]
    assert inverse_N.tolist() == [2, 1, 2, 0]
    none, back = distinct(torch.zeros(0, dtype=torch.int64))
    assert (none.tolist(), back.tolist()) == ([], [])
