"""Takes TorchRec's KeyedJaggedTensor, and gives rows back as its EmbeddingCollection would.

So that a TorchRec user's loop can feed our tables and its model can go on: keys (features) are
mapped to tables, several keys may share one. TorchRec itself is not imported: whatever has
`keys()`, `values()` and `lengths()` will do, and `stride_per_key()` is heeded where keys differ in
their number of samples.

    features = KeyedJaggedIds(kjt, tables=tables, table_of_key={"item": "items"}, step=step)
    ids_U, inverse_N = distinct(features.ids["items"])
    ... rows_UD of the table "items" ...
    rows_of_key = features.rows({"items": rows_UD[inverse_N]})   # {"item": JaggedRows}

Before: a TorchRec data pipeline.   After: ids.py, exchange.py; then the user's model.
Per-sample weights of a KeyedJaggedTensor are left aside, as EmbeddingCollection does.

Shape letters: K keys, B samples, N ids of one table over its keys, J ids of one key, D width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from analytics.errors import ConfigError, InputError
from training.config import TableConfig
from training.embeddings.ids import checked_ids

BatchT = TypeVar("BatchT")


class KeyedJagged(Protocol):
    """What of TorchRec's KeyedJaggedTensor is used."""

    def keys(self) -> list[str]:
        """The K features, in the order of the values."""
        ...

    def values(self) -> Tensor:
        """All ids, key by key and within a key sample by sample."""
        ...

    def lengths(self) -> Tensor:
        """How many ids each key has of each sample, key by key."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class JaggedRows:
    """The rows of one key, sample by sample; reads like TorchRec's JaggedTensor."""

    values_JD: Tensor
    lengths_B: Tensor

    def values(self) -> Tensor:
        """All rows; shape (J, D)."""
        return self.values_JD

    def lengths(self) -> Tensor:
        """How many rows each sample has; shape (B,)."""
        return self.lengths_B

    def offsets(self) -> Tensor:
        """Where each sample's rows begin, and the end; int64, shape (B + 1,)."""
        return torch.nn.functional.pad(self.lengths_B.to(torch.int64).cumsum(0), (1, 0))

    def to_dense(self) -> list[Tensor]:
        """The rows of each sample; B tensors of shape (its length, D)."""
        return list(torch.split(self.values_JD, self.lengths_B.tolist()))


class KeyedJaggedIds:
    """The ids of one batch by table, and the way back to keys.

    table_of_key: the name of each key's table. `ids`: int64 ids by table, those of its keys one
    after another in the order of the batch; every table is there, empty where no key of the batch
    is its. step: the number of the batch, for messages.
    Raises ConfigError when a key has no table or an unknown one, IdError (which names the key) when
    an id is outside its table, InputError when lengths and values do not belong together.
    """

    def __init__(
        self,
        jagged: KeyedJagged,
        *,
        tables: Sequence[TableConfig],
        table_of_key: Mapping[str, str],
        step: int,
    ) -> None:
        self._keys = list(jagged.keys())
        self._table_of_key = table_of_key
        known = {table.name: table for table in tables}
        self._check_keys(known)
        values, lengths = jagged.values(), jagged.lengths()
        self._lengths = _by_key(jagged, self._keys, lengths)
        self._num_ids = [int(part.sum()) for part in self._lengths]
        if sum(self._num_ids) != len(values):
            raise InputError(
                f"batch of step {step}: the lengths sum to {sum(self._num_ids)}, but there are "
                f"{len(values)} values. Build the KeyedJaggedTensor with lengths of its values."
            )
        parts: dict[str, list[Tensor]] = {name: [] for name in known}
        for key, ids_J in zip(self._keys, torch.split(values, self._num_ids), strict=True):
            table = known[table_of_key[key]]
            parts[table.name].append(
                checked_ids(ids_J, table=table.name, num_rows=table.num_rows, step=step, column=key)
            )
        none = torch.zeros(0, dtype=torch.int64, device=values.device)
        self.ids: dict[str, Tensor] = {
            name: torch.cat(of_keys) if of_keys else none for name, of_keys in parts.items()
        }

    def rows(self, rows_of_table: Mapping[str, Tensor]) -> dict[str, JaggedRows]:
        """Each key's rows, from the rows of each table's `ids`, shape (N, D).

        Views, so gradients of a key's rows reach the table's.
        """
        taken = dict.fromkeys(self.ids, 0)
        jagged = {}
        for key, num_ids, lengths_B in zip(self._keys, self._num_ids, self._lengths, strict=True):
            table = self._table_of_key[key]
            begin = taken[table]
            taken[table] = begin + num_ids
            values_JD = rows_of_table[table][begin : begin + num_ids]
            jagged[key] = JaggedRows(values_JD=values_JD, lengths_B=lengths_B)
        return jagged

    def _check_keys(self, known: Mapping[str, TableConfig]) -> None:
        for key in self._keys:
            table = self._table_of_key.get(key)
            if table not in known:
                what = "has no table" if table is None else f"has the unknown table {table!r}"
                raise ConfigError(
                    f"key {key!r} {what}; tables are {', '.join(known)}. "
                    "Name one of them for it in table_of_key."
                )


def _by_key(jagged: KeyedJagged, keys: list[str], lengths: Tensor) -> list[Tensor]:
    """Each key's part of the lengths."""
    if not keys:
        return []
    strides = getattr(jagged, "stride_per_key", None)
    per_key = strides() if strides is not None else [len(lengths) // len(keys)] * len(keys)
    if sum(per_key) != len(lengths):
        raise InputError(
            f"{len(lengths)} lengths do not divide among {len(keys)} keys ({', '.join(keys)}). "
            "Give every key a length for every sample, 0 where it has no ids."
        )
    return list(torch.split(lengths, per_key))


def with_keyed_ids(
    batches: Iterable[BatchT],
    features: Callable[[BatchT], KeyedJagged],
    *,
    tables: Sequence[TableConfig],
    table_of_key: Mapping[str, str],
) -> Iterator[tuple[BatchT, KeyedJaggedIds]]:
    """Each batch of a loader with its ids by table, for `OverlappedTables.over` and `keyed_ids`.

    features: a batch's KeyedJaggedTensor. Raises as KeyedJaggedIds does.
    """
    for step, batch in enumerate(batches):
        keyed = KeyedJaggedIds(features(batch), tables=tables, table_of_key=table_of_key, step=step)
        yield batch, keyed


def keyed_ids(pair: tuple[object, KeyedJaggedIds]) -> Mapping[str, Tensor]:
    """The ids by table of a pair of `with_keyed_ids`."""
    return pair[1].ids
