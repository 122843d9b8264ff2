"""Makes small sequence stores from histories written out in a test."""

from pathlib import Path

import numpy as np

from analytics.store import (
    TEST,
    TRAIN,
    VALIDATION,
    SequenceStore,
    StoreHeader,
    open_store,
    write_header,
)


def made_store(
    folder: Path, histories: list[list[int]], times_s: list[list[int]] | None = None
) -> SequenceStore:
    """A store of these items a user, the last two held out where one is left; times in seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    items = np.array([item for history in histories for item in history], dtype=np.int32)
    flat = [time for history in times_s or [] for time in history] or [0] * len(items)
    ends = np.cumsum([len(history) for history in histories])
    splits = np.full(len(items), TRAIN, dtype=np.uint8)
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        if end - start > 1:  # a single event is trained on
            splits[end - 1] = TEST
        if end - start > 2:
            splits[end - 2] = VALIDATION
    np.save(folder / "items.npy", items)
    np.save(folder / "times.npy", np.array(flat, dtype=np.int64) * 1_000_000)
    np.save(folder / "splits.npy", splits)
    np.save(folder / "offsets.npy", np.concatenate([[0], ends]).astype(np.int64))
    counts = np.bincount(splits, minlength=4)
    write_header(
        folder,
        StoreHeader(
            schema_version=2, dataset_id="d", dataset_name="made", content_sha256="c",
            source_sha256="s", terms="own", num_rows_read=len(items), num_events=len(items),
            num_users=len(histories), num_items=int(items.max()) + 1, dropped_rows={},
            num_in_split=dict(
                zip(("train", "validation", "test", "unused"), map(int, counts), strict=True)
            ),
            tied_share=0.0, has_times=times_s is not None, actions=[], has_ratings=False,
            sources=[], rules={"words": {"split": "leave last one out"}}, pseudonyms=None,
            data_sheet={},
        ),
    )  # fmt: skip
    return open_store(folder)
