"""TorchRec's jagged features in, its jagged rows out; against TorchRec: test_torchrec_oracle.py."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from analytics.errors import ConfigError, IdError, InputError
from training.config import TableConfig
from training.embeddings.keyed_jagged import KeyedJaggedIds

TABLES = [
    TableConfig(name="items", num_rows=10, width=4),
    TableConfig(name="users", num_rows=4, width=4),
]
TABLE_OF_KEY = {"seen": "items", "user": "users", "bought": "items"}


@dataclasses.dataclass
class Jagged:
    """The methods of KeyedJaggedTensor that are used."""

    names: list[str]
    ids: list[int]
    counts: list[int]

    def keys(self) -> list[str]:
        return self.names

    def values(self) -> Tensor:
        return torch.tensor(self.ids, dtype=torch.int64)

    def lengths(self) -> Tensor:
        return torch.tensor(self.counts, dtype=torch.int32)


# two samples; seen: [5 1] [], user: [3] [0], bought: [] [1 9 1]
BATCH = Jagged(["seen", "user", "bought"], [5, 1, 3, 0, 1, 9, 1], [2, 0, 1, 1, 0, 3])


def read(jagged: Jagged) -> KeyedJaggedIds:
    return KeyedJaggedIds(jagged, tables=TABLES, table_of_key=TABLE_OF_KEY, step=7)


def test_keys_that_share_a_table_come_one_after_another() -> None:
    ids = read(BATCH).ids
    assert {table: found.tolist() for table, found in ids.items()} == {
        "items": [5, 1, 1, 9, 1],
        "users": [3, 0],
    }


def test_rows_return_to_their_keys_and_gradients_to_their_table() -> None:
    items = torch.arange(5.0)[:, None].requires_grad_()
    users = torch.tensor([[30.0], [0.0]])
    rows = read(BATCH).rows({"items": items, "users": users})
    assert list(rows) == ["seen", "user", "bought"]
    assert rows["seen"].values().flatten().tolist() == [0, 1]
    assert rows["seen"].lengths().tolist() == [2, 0]
    assert rows["user"].values().flatten().tolist() == [30, 0]
    assert rows["bought"].values().flatten().tolist() == [2, 3, 4]
    assert rows["bought"].offsets().tolist() == [0, 0, 3]
    assert [len(part) for part in rows["bought"].to_dense()] == [0, 3]
    (rows["seen"].values().sum() + 10 * rows["bought"].values().sum()).backward()
    assert items.grad is not None
    assert items.grad.flatten().tolist() == [1, 1, 10, 10, 10]


def test_a_batch_without_ids_or_samples_is_legal() -> None:
    for counts in ([0] * 6, []):
        empty = read(Jagged(["seen", "user", "bought"], [], counts))
        assert {table: len(ids) for table, ids in empty.ids.items()} == {"items": 0, "users": 0}
        rows = empty.rows({"items": torch.zeros(0, 4), "users": torch.zeros(0, 4)})
        assert rows["seen"].values().shape == (0, 4)


def test_a_table_without_a_key_gets_no_ids() -> None:
    assert read(Jagged(["user"], [1], [1])).ids["items"].tolist() == []


def test_an_id_outside_its_table_names_its_key_and_batch() -> None:
    with pytest.raises(IdError, match=r"step 7, column 'user', table 'users': id 4 at place 1"):
        read(Jagged(["seen", "user"], [9, 3, 4], [1, 2]))


def test_a_key_without_a_table_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"key 'genre' has no table; tables are items, users"):
        read(Jagged(["genre"], [1], [1]))
    with pytest.raises(ConfigError, match=r"key 'a' has the unknown table 'x'"):
        KeyedJaggedIds(Jagged(["a"], [1], [1]), tables=TABLES, table_of_key={"a": "x"}, step=0)


def test_lengths_and_values_must_belong_together() -> None:
    with pytest.raises(InputError, match=r"the lengths sum to 2, but there are 3 values"):
        read(Jagged(["seen"], [1, 2, 3], [1, 1]))
    with pytest.raises(InputError, match=r"3 lengths do not divide among 2 keys"):
        read(Jagged(["seen", "user"], [1, 2, 3], [1, 1, 1]))
