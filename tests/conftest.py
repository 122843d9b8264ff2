"""A small pipeline with numbers one can check on paper, as the journals that a real run leaves.

Two arms on two ranks, four steps in two blocks of two, rank time priced at 9 EUR an hour.
`baseline`: windows of 4 s; rank 0 works 3 s, rank 1 works 1 s and waits 2 s for it.
`balanced`: windows of 2.5 s; both ranks work 2 s.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

from analytics import schema, warehouse
from analytics.interactions import PreparedData, prepare
from analytics.journal import JournalWriter
from analytics.preparation import Preparation
from analytics.pseudonyms import PseudonymKey
from analytics.rules import HistoryRules
from analytics.store import read_header
from tests.analytics.filled import FilledWarehouse

PIPELINE = "20261130T140000Z-1a2b"
STARTED_UNIX_NS = 1_796_047_200_000_000_000

# arm -> for each rank: (busy, straggler wait, wire, data wait, unattributed), summing to the window
ARMS = {
    "baseline": (4.0, [(3.0, 0.0, 0.5, 0.25, 0.25), (1.0, 2.0, 0.5, 0.25, 0.25)]),
    "balanced": (2.5, [(2.0, 0.0, 0.25, 0.125, 0.125), (2.0, 0.0, 0.25, 0.125, 0.125)]),
}


class PaperRuns:
    """Writes journals of chosen content under a runs folder."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir

    def journal(self, pipeline_id: str = PIPELINE, attempt: int | None = 0) -> Path:
        folder = self.runs_dir / pipeline_id
        return (folder if attempt is None else folder / f"attempt-{attempt}") / "journal"

    def write(self, records, *, writer="paper", pipeline_id=PIPELINE, attempt: int | None = 0):
        with JournalWriter(self.journal(pipeline_id, attempt), writer) as journal:
            for record in records:
                journal.write(record)

    def pipeline(self, pipeline_id: str = PIPELINE, attempt: int = 0, num_steps: int = 4) -> None:
        """The whole paper pipeline: data set, price, runs, steps, evaluations, models."""
        own = [self.dataset(), self.price(pipeline_id)]
        own += [self.model(arm, pipeline_id) for arm in ARMS]
        self.write(own, writer="flow", pipeline_id=pipeline_id, attempt=None)
        for arm in ARMS:
            records = self.arm(arm, pipeline_id, attempt, num_steps)
            self.write(records, writer=arm, pipeline_id=pipeline_id, attempt=attempt)

    def arm(self, arm: str, pipeline_id: str = PIPELINE, attempt: int = 0, num_steps: int = 4):
        """The records of one arm: run, steps and evaluations."""
        records = [self.run(arm, pipeline_id=pipeline_id, attempt=attempt)]
        for step in range(num_steps):
            for rank in range(2):
                records.append(self.step(arm, rank, step, pipeline_id=pipeline_id, attempt=attempt))
        return [
            *records,
            self.evaluation(arm, "test", "model", 0.16, pipeline_id, attempt),
            self.evaluation(arm, "test", "popularity", 0.08, pipeline_id, attempt),
            self.evaluation(arm, "validation", "model", 0.5, pipeline_id, attempt),
        ]

    def publish(self) -> None:
        warehouse.load(self.runs_dir)
        warehouse.publish(self.runs_dir)

    def dataset(self, **changes):
        values = dict(
            dataset_id="d0", dataset_name="paper", source_sha256="0" * 64, terms="own",
            num_rows_read=40, num_rows_kept=40, num_users=8, num_items=20, min_length=5,
            median_length=5.0, max_length=5, tied_share=0.0, num_training_events=24,
            num_validation_events=8, num_test_events=8, has_times=True, is_pseudonymised=False,
            min_group_users=1,
        )  # fmt: skip
        return schema.DimDataset(**(values | changes))

    def price(self, pipeline_id: str = PIPELINE):
        return schema.DimPrice(
            pipeline_id=pipeline_id, instance_type="paper.1", cloud="own", region="here",
            device_name="paper", num_devices=1, device_hour_cost=9.0, currency="EUR",
            list_device_hour_cost=9.0, list_currency="EUR", price_date="2026-11-30", source="paper",
        )  # fmt: skip

    def model(self, arm: str, pipeline_id: str = PIPELINE):
        is_registered = arm == "balanced"
        return schema.DimModel(
            run_id=f"{pipeline_id}-{arm}", pipeline_id=pipeline_id, mlflow_run_id=f"m-{arm}",
            mlflow_parent_run_id="m", model_name="seqscale" if is_registered else None,
            model_version="1" if is_registered else None,
            model_alias="challenger" if is_registered else None,
        )  # fmt: skip

    def run(self, arm: str, *, pipeline_id: str = PIPELINE, attempt: int = 0, **changes):
        values = dict(
            run_id=f"{pipeline_id}-{arm}", pipeline_id=pipeline_id, attempt=attempt, arm=arm,
            placement="random_equal", schedule="synchronous", dataset_id="d0",
            config_sha256="0" * 64, seed=1, world_size=2, device="cpu", host="paper", num_steps=4,
            num_epochs=1, global_batch_sequences=8, predicted_straggler_share=0.25,
            bound_straggler_share=0.0, collision_share=0.5, instance_type="paper.1",
            device_hour_cost=9.0, currency="EUR", started_unix_ns=STARTED_UNIX_NS,
            seqscale_version="0", transport="gloo", precision="fp32", micro_batches=1,
            table_optimizer="rowwise_adagrad", scaling_sha256=None,
        )  # fmt: skip
        return schema.DimRun(**(values | changes))

    def step(self, arm: str, rank: int, step: int, *, pipeline_id=PIPELINE, attempt=0, **changes):
        window_s, ranks = ARMS[arm]
        busy_s, wait_s, wire_s, data_s, rest_s = ranks[rank]
        started = STARTED_UNIX_NS + int(step * window_s * 1e9)
        values = dict(
            run_id=f"{pipeline_id}-{arm}", pipeline_id=pipeline_id, attempt=attempt, rank=rank,
            step=step, epoch=0, block=step // 2, started_unix_ns=started, window_s=window_s,
            busy_s=busy_s, straggler_wait_s=wait_s, exposed_comm_s=wire_s, exposed_copy_s=0.0,
            data_wait_s=data_s, host_wait_s=None, kernel_gap_s=None, unattributed_s=rest_s,
            exposed_comm_total_s=wait_s + wire_s, comm_s=wait_s + wire_s, overlapped_comm_s=0.0,
            cpu_s=busy_s / 2, predicted_cost_s=busy_s, num_sequences=4, num_tokens=20,
            num_targets=16, loss_sum=16.0 * (5 - step), num_rows=16, num_rows_ahead=4,
            sent_bytes=1024, exposed_ids_s=0.0, exposed_rows_s=wait_s + wire_s,
            exposed_gradients_s=0.0, exposed_dense_s=0.0, recorder_cpu_s=0.0, was_skipped=False,
            model_flops=None,
        )  # fmt: skip
        return schema.FactStep(**(values | changes))

    def evaluation(self, arm, split, ranker, hr_at_10, pipeline_id=PIPELINE, attempt=0):
        return schema.FactEvaluation(
            run_id=f"{pipeline_id}-{arm}", pipeline_id=pipeline_id, attempt=attempt, split=split,
            ranker=ranker, num_users=8, num_cold_targets=1, hr_at_10=hr_at_10,
            ndcg_at_10=hr_at_10 / 2, mrr=hr_at_10 / 4, parameters_sha256="0" * 64,
        )  # fmt: skip


@pytest.fixture(autouse=True, scope="session")
def _no_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A configuration folder of the tests' own: a key for pseudonyms may be made in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def paper(tmp_path: Path) -> PaperRuns:
    """An empty runs folder and the means to fill it."""
    return PaperRuns(tmp_path / "runs")


@pytest.fixture(scope="session")
def _published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = PaperRuns(tmp_path_factory.mktemp("paper") / "runs")
    runs.pipeline()
    runs.publish()
    return runs.runs_dir


@pytest.fixture
def published(_published: Path, paper: PaperRuns) -> PaperRuns:
    """The paper pipeline, loaded and published; a copy of its own for each test."""
    shutil.copytree(_published, paper.runs_dir)
    return paper


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledWarehouse]:
    """A warehouse without a row, to be filled with records."""
    warehouse_of_test = FilledWarehouse(tmp_path)
    yield warehouse_of_test
    warehouse_of_test.con.close()


class PaperShop:
    """Files of a shop whose customers have ids that occur nowhere by chance, and their stores.

    Each customer buys once a day on eight days; BRIEF on two only, too few to be kept.
    """

    NAMES = ("anna-customer-1001", "bert-customer-1002", "cleo-customer-1003", "dora-customer-1004")
    ANNA, BRIEF = NAMES[0], "brief-customer-1005"
    SECRET, OTHER_SECRET = "0123456789abcdef-one", "0123456789abcdef-two"
    KEY = PseudonymKey(secret=SECRET.encode(), where="here")
    OTHER_KEY = PseudonymKey(secret=OTHER_SECRET.encode(), where="there")
    DAY_US = 86_400_000_000
    NOW_US = 200 * DAY_US
    RULES = HistoryRules(min_history=3, max_history=6)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.stores = self.runs / ".work" / "stores"

    def file(self, name: str, *users: str, first_day: int = 100, days: int = 8) -> Path:
        """A file of these users' purchases."""
        lines = ["user_id,item_id,timestamp,rating"]
        for day in range(first_day, first_day + days):
            for user in users:
                place = [*self.NAMES, self.BRIEF].index(user)
                if user != self.BRIEF or day < first_day + 2:
                    item, time = (day * 7 + place * 3) % 11, day * 86_400 + place
                    lines.append(f"{user},sku-{item},{time},{place % 5}")
        path = self.folder / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def prepared(
        self,
        *users: str,
        key: PseudonymKey | None = KEY,
        name: str = "shop.csv",
        out: Path | None = None,
        keep_days: int | None = None,
        now_us: int = NOW_US,
    ) -> PreparedData:
        """A store of these users in the runs folder, or in `out`."""
        return prepare(
            self.file(name, *users),
            self.stores,
            key=key,
            preparation=Preparation(history=self.RULES, keep_days=keep_days),
            out=out,
            now_us=now_us,
        )

    def store_dirs(self) -> list[Path]:
        return sorted(self.stores.iterdir())

    @staticmethod
    def rows(folder: Path, name: str) -> list[tuple[object, ...]]:
        """Every row of one of a store's Parquet files."""
        return duckdb.sql(f"SELECT * FROM '{folder / name}.parquet'").fetchall()

    def content(self, folder: Path) -> dict[str, object]:
        """Everything a store says but for dates, versions and the count of what was erased."""
        said: dict[str, object] = {
            path.stem: np.load(path).tolist() for path in sorted(folder.glob("*.npy"))
        }
        said |= {name: self.rows(folder, name) for name in ("item_map", "user_map", "set_aside")}
        header = read_header(folder)
        said["counts"] = (header.num_events, header.num_users, header.num_items)
        said["splits"], said["tied"] = header.num_in_split, header.tied_share
        said["dropped"] = {k: v for k, v in header.dropped_rows.items() if k != "forgotten"}
        return said


@pytest.fixture
def shop(tmp_path: Path) -> PaperShop:
    """A shop without any store yet."""
    return PaperShop(tmp_path)
