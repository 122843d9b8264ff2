import pytest

pytest.importorskip("altair", reason="the dashboard extra is not installed")

from analytics.metrics import CAUSE_LABELS
from dashboard import charts, wording
from dashboard.overview import csv_text


def piece(arm: str, cause: str, share: float) -> dict:
    rank = list(CAUSE_LABELS).index(cause) + 1
    return dict(arm=arm, cause=cause, cause_rank=rank, share=share, seconds=share, cost=share)


def test_pieces_lie_end_to_end_in_the_order_of_the_causes():
    rows = [
        piece("z", "busy", 0.5), piece("z", "data_wait", 0.5),
        piece("a", "straggler_wait", 0.25), piece("a", "busy", 0.75),
    ]  # fmt: skip
    frame = charts._pieces(rows, "share", ".0%")
    assert list(zip(frame["arm"], frame["cause"], frame["start"], frame["end"], strict=True)) == [
        ("z", "busy", 0.0, 0.5),  # the arm that came first stays first
        ("z", "data_wait", 0.5, 1.0),
        ("a", "busy", 0.0, 0.75),
        ("a", "straggler_wait", 0.75, 1.0),
    ]


def test_every_cause_has_a_label_and_one_hue():
    assert set(charts.CAUSE_HUES) == set(CAUSE_LABELS)
    # the two wordings of blocked communication share a hue: they are one cause, told less finely
    assert len(set(charts.CAUSE_HUES.values())) == len(CAUSE_LABELS) - 1


def test_a_cause_keeps_its_hue_whatever_else_is_shown():
    def hues(rows):
        scale = charts.stacked_causes(rows, value="share", axis="", number_format=".0%")
        color = scale.to_dict()["layer"][0]["encoding"]["color"]["scale"]
        return dict(zip(color["domain"], color["range"], strict=True))

    few = hues([piece("a", "data_wait", 1.0)])
    many = hues([piece("a", cause, 0.1) for cause in CAUSE_LABELS])
    assert few["waiting for data"] == many["waiting for data"] == charts.CAUSE_HUES["data_wait"]


def test_a_piece_too_narrow_for_its_number_has_none():
    frame = charts._pieces(
        [piece("a", "busy", 0.98), piece("a", "data_wait", 0.02)], "share", ".0%"
    )
    assert list(frame["text"]) == ["98%", ""]


def test_a_cause_without_any_time_is_left_to_the_table():
    frame = charts._pieces([piece("a", "busy", 1.0), piece("a", "data_wait", 0.0)], "share", ".0%")
    assert list(frame["cause"]) == ["busy"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "12.3 ms"), (1.5, "1.50 s"), (None, wording.MISSING)]
)
def test_a_duration_has_the_unit_that_fits(value, text):
    assert wording.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234.50 EUR"), (0.05, "0.0500 EUR"), (0.000012, "0.000012 EUR"), (0.0, "0.00 EUR")],
)
def test_a_small_amount_keeps_its_digits(value, text):
    assert wording.money(value, "EUR") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "5 s"), (180, "3 min"), (7 * 3600, "7 h"), (86_400 * 3, "3 days"), (-1, "0 s")],
)
def test_an_age_is_told_in_the_unit_that_fits(seconds, text):
    assert wording.age(seconds) == text


def test_a_change_against_nothing_is_not_told():
    assert wording.change(1.0, None) is None
    assert wording.change(1.0, 0.0) is None
    assert wording.change(1.0, 2.0) == "-50.0 %"


def test_a_download_disarms_formulas_and_leaves_missing_cells_empty():
    assert csv_text([{"a": "=1+1", "b": None, "c": -0.5}]) == "a,b,c\n'=1+1,,-0.5\n"
