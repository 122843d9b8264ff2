"""nvidia-smi's CSV: cells, devices, times, zones; what cannot be is kept with line and reason."""

import datetime
import itertools
import zoneinfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics.errors import ConfigError
from analytics.telemetry.import_options import ImportOptions
from analytics.telemetry.importing import ALREADY, IMPORTED, import_telemetry
from analytics.telemetry.zones import passes
from tests.analytics.importing_logs import UTC, import_text, refusal, rejects, samples

HEADER = "timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]\n"
MADRID = ImportOptions(host="h", time_zone="Europe/Madrid")
S = 10**9


def ns(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).timestamp()) * S


@pytest.mark.parametrize(
    "nothing",
    ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "ERR!",
     "-", "", "[GPU is lost]", "nan", "inf"],
)  # fmt: skip
def test_a_cell_that_says_nothing_is_null_and_its_row_stays(tmp_path, nothing):
    # gpustat#6, gputil#5, i3pystatus#776, ODS#699: crashed, dropped every GPU, or put 0
    text = (
        f"{HEADER}2026/01/01 00:00:00.000, 0, {nothing}, 364 MiB, {nothing}\n"
        "2026/01/01 00:00:00.000, 1, 0 %, 1 MiB, 60 W\n"
    )
    outcome = import_text(tmp_path, text)
    assert outcome.about.num_loaded == 2
    assert not outcome.left_out
    assert samples(tmp_path / "runs", "utilization_share", "memory_used_bytes", "power_w") == [
        (None, 364 * 2**20, None), (0.0, 2**20, 60.0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "why"),
    [("2619 %", "out_of_range"), ("808334905", "out_of_range"), ("4294967295", "out_of_range"),
     ("-1 %", "out_of_range"), ("9 W", "unknown_unit"), ("busy", "not_a_number")],
)  # fmt: skip
def test_a_figure_that_cannot_be_is_left_out_with_its_line_and_the_row_stays(tmp_path, cell, why):
    # DCGM#199, dcgm-exporter#418
    text = f"{HEADER}2026/01/01 00:00:00, 0, {cell}, 1 MiB, 60.5 W\n"
    outcome = import_text(tmp_path, text)
    assert (outcome.about.num_loaded, outcome.about.num_rejected) == (1, 0)
    assert outcome.left_out == {f"cell_{why}: utilization_share": 1}
    assert rejects(tmp_path / "runs") == [(2, f"cell_{why}: utilization_share")]
    assert samples(tmp_path / "runs", "utilization_share", "power_w") == [(None, 60.5)]


@pytest.mark.parametrize(
    "blank",
    ["140737488355328", "140737488355328.0", "9223372036854775792", "9223372036854775794"],
)
def test_a_blank_of_dcgm_is_nothing(tmp_path, blank):
    # slurm-job-exporter#30, gpu-monitoring-tools#92: blanks were stored as data
    import_text(tmp_path, f"{HEADER}2026/01/01 00:00:00, 0, 5, 1, {blank}\n")
    assert samples(tmp_path / "runs", "power_w", "utilization_share") == [(None, 0.05)]


def test_units_in_cells_and_headers_mean_the_same(tmp_path):
    text = (
        "timestamp,gpu_uuid,gpu_util(%),mem_used_mb,memory.total [GiB],power_W,temp_c,clocks.sm\n"
        "2026-01-01T00:00:00Z,GPU-1a,45 %,364 MiB,80,63500 mW,40 C,1.5 GHz\n"
    )
    import_text(tmp_path, text)
    assert samples(
        tmp_path / "runs", "device_id", "utilization_share", "memory_used_bytes",
        "memory_total_bytes", "power_w", "temperature_c", "sm_clock_mhz",
    ) == [("GPU-1a", 0.45, 364 * 2**20, 80 * 2**30, 63.5, 40.0, 1500.0)]  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-8"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encodings_line_ends_and_a_line_of_zero_bytes_change_nothing(tmp_path, encoding, end):
    text = f"{HEADER}2026/01/01 00:00:00.250, 0, 5 %, 1 MiB, 60 W\n\0\n".replace("\n", end)
    outcome = import_text(tmp_path, text.encode(encoding))
    assert outcome.about.num_read == 1
    assert samples(tmp_path / "runs", "sampled_unix_ns", "power_w") == [
        (ns("2026-01-01T00:00:00+00:00") + 250_000_000, 60.0)
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8"])
@pytest.mark.parametrize("place", [0, 10, 24, 25, 27, -1])
def test_a_line_with_a_zero_byte_is_rejected_wherever_it_stands(tmp_path, encoding, place):
    # '25 %' with a zero byte before its 5 may have been 25 or 15: no figure of the line is sure
    good = "2026/01/01 00:00:0{}.000, 0, 25 %, 1 MiB, 60 W"
    bad = good.format(2)
    cut = len(bad) + 1 + place if place < 0 else place
    bad = bad[:cut] + "\0" + bad[cut:]
    text = HEADER + "\n".join([good.format(1), bad, good.format(3)]) + "\n"
    about = import_text(tmp_path, text.encode(encoding)).about
    assert (about.num_read, about.num_loaded, about.num_rejected) == (3, 2, 1)
    assert rejects(tmp_path / "runs") == [(3, "zero_byte")]


def test_a_zero_byte_in_a_quoted_cell_of_several_lines_rejects_its_record(tmp_path):
    row = "2026/01/01 00:00:0{}, 0, {}, 1 MiB, 60 W\n"
    rows = row.format(1, '"5\n\0 %"') + row.format(2, "5 %")
    about = import_text(tmp_path, HEADER + rows).about
    assert (about.num_loaded, about.num_rejected) == (1, 1)
    assert rejects(tmp_path / "runs") == [(2, "zero_byte")]


def test_a_zero_byte_in_the_header_is_refused_and_not_guessed_around(tmp_path):
    row = "2026/01/01 00:00:00, 0, 5 %, 1 MiB, 6 W\n"
    text = HEADER.replace("utilization", "util\0ization") + row
    assert "line 1: a zero byte stands in the header" in refusal(tmp_path, text)
    fields = ("timestamp", "index", "utilization.gpu", "memory.used", "power.draw")
    told = ImportOptions(time_zone="UTC", host="h", fields=fields)
    about = import_text(tmp_path, text, told).about
    assert (about.num_loaded, about.num_rejected) == (1, 1)


def test_bad_lines_are_kept_with_their_numbers_and_the_header_may_come_again(tmp_path):
    good = "2026/01/01 00:00:0{}, 0, 5 %, 1 MiB, 60 W\n"
    text = (
        HEADER + good.format(1) + "2026/01/01 00:00:02, 0, 5 %\n" + "\n" + HEADER
        + '2026/01/01 00:00:03, 0, "5 %, 1 MiB, 60 W\n' + good.format(4)
        + "tomorrow, 0, 5 %, 1 MiB, 60 W\n" + "2026/01/01 00:00:05, [N/A], 5 %, 1 MiB, 60 W\n"
        + "x" * 200_000 + "\n"
    )  # fmt: skip
    about = import_text(tmp_path, text).about
    assert (about.num_read, about.num_loaded, about.num_rejected) == (7, 2, 5)
    assert rejects(tmp_path / "runs") == [
        (3, "wrong_number_of_cells"), (6, "unclosed_quote"), (8, "time_unreadable"),
        (9, "device_untold"), (10, "line_too_long"),
    ]  # fmt: skip


def test_rows_of_one_device_and_time_become_one_and_contradictions_are_counted(tmp_path):
    # gpustack#5902, gpu-monitoring-tools#174: two exporters, one timestamp, other values
    row = "2026/01/01 00:00:00, 0, {} %, 1 MiB, {}\n"
    text = HEADER + row.format(5, "60 W") + row.format(9, "60 W") + row.format(7, "[N/A]")
    about = import_text(tmp_path, text).about
    assert (about.num_loaded, about.num_records, about.num_conflicts) == (3, 1, 1)
    assert samples(tmp_path / "runs", "utilization_share", "power_w") == [(0.09, 60.0)]


def test_times_in_the_future_and_long_ago_are_flagged_and_loaded(tmp_path):
    # promitor#290: a wrong clock cost the samples
    text = HEADER + "".join(f"{y}/01/01 00:00:00, 0, 5, 1, 60\n" for y in (1999, 2026, 2099))
    outcome = import_text(tmp_path, text)
    assert outcome.flags == {"time_in_the_future": 1, "time_before_2007": 1}
    assert outcome.about.num_loaded == 3
    ingested = samples(tmp_path / "runs", "ingested_unix_ns - sampled_unix_ns > 0")
    assert ingested == [(True,), (True,), (False,)]


def test_a_clock_offset_that_is_told_is_taken_off_and_recorded(tmp_path):
    ahead = ImportOptions(host="h", clock_offset_ns=90 * S)
    outcome = import_text(tmp_path, "timestamp,util\n", ahead)
    text = "timestamp,gpu_util\n2026-01-01T00:01:30Z,5\n"
    outcome = import_text(tmp_path, text, ahead)
    assert outcome.about.clock_offset_ns == 90 * S
    assert samples(tmp_path / "runs", "sampled_unix_ns") == [(ns("2026-01-01T00:00:00+00:00"),)]


def test_an_hour_that_the_clock_skips_is_refused(tmp_path):
    # in Madrid 02:30 never was on 29 March 2026
    rows = [f"2026/03/29 {clock}, 0, 5, 1, 60\n" for clock in ("01:59:59", "02:30:00", "03:00:00")]
    about = import_text(tmp_path, HEADER + "".join(rows), MADRID).about
    assert (about.num_loaded, about.num_rejected, about.time_zone) == (2, 1, "Europe/Madrid")
    assert rejects(tmp_path / "runs") == [(3, "time_skipped_by_clock")]
    assert samples(tmp_path / "runs", "sampled_unix_ns") == [
        (ns("2026-03-29T00:59:59+00:00"),), (ns("2026-03-29T01:00:00+00:00"),),
    ]  # fmt: skip


def wall(begin: str, num: int, minutes: int = 10) -> list[tuple[str, int]]:
    """Madrid's clock and the UTC of samples that follow each other."""
    zone = zoneinfo.ZoneInfo("Europe/Madrid")
    first = datetime.datetime.fromisoformat(begin)
    moments = [first + datetime.timedelta(minutes=minutes * n) for n in range(num)]
    return [(f"{m.astimezone(zone):%Y/%m/%d %H:%M:%S}", int(m.timestamp()) * S) for m in moments]


def log_of(moments) -> str:
    return HEADER + "".join(f"{clock}, 0, 5, 1, 60\n" for clock, _ in moments)


@pytest.mark.parametrize(
    "moments",
    [
        wall("2025-10-25T23:00:00+00:00", 24),  # through both passes
        wall("2025-10-25T23:50:00+00:00", 6),  # into the first pass, and ends there
        wall("2025-10-26T01:10:00+00:00", 9),  # begins in the second pass
    ],
)
def test_an_hour_that_the_clock_repeats_is_told_by_what_stands_around_it(tmp_path, moments):
    # streamlit#2369: 02:30 twice in one night ended in an error
    outcome = import_text(tmp_path, log_of(moments), MADRID)
    assert outcome.rejected == {}
    assert samples(tmp_path / "runs", "sampled_unix_ns") == [(utc,) for _, utc in moments]


def test_a_repeated_hour_that_nothing_decides_is_rejected(tmp_path):
    hour = wall("2025-10-26T00:10:00+00:00", 4)  # begins and ends within it
    later = wall("2025-10-26T05:00:00+00:00", 2)
    outcome = import_text(tmp_path, log_of(hour + later), MADRID)
    assert outcome.rejected == {"time_ambiguous": 4}
    assert outcome.about.num_loaded == 2


@pytest.mark.parametrize(
    ("clocks", "ambiguous", "utc"),
    [
        # 49 minutes lie before 02:59:30, and after it 30 or, in the first pass, 90
        (("01:59:30", "02:10:00", "02:59:30", "03:30:00"), 1, ("23:59:30", "00:10:00", "02:30:00")),
        # the first piece goes on from before, the last one into what follows
        (("01:59:30", "02:10:00", "02:50:00", "03:00:00"), 0,
         ("23:59:30", "00:10:00", "01:50:00", "02:00:00")),
        # what lies between two gaps goes on nowhere
        (("01:59:30", "02:10:00", "02:30:00", "02:50:00", "03:00:00"), 1,
         ("23:59:30", "00:10:00", "01:50:00", "02:00:00")),
        # 20 minutes back are neither a jump of the clock for sure nor two samples out of order
        (("01:59:30", "02:14:00", "02:29:00", "02:09:00", "02:20:00", "03:30:00"), 2,
         ("23:59:30", "00:14:00", "00:29:00", "02:30:00")),
        # a jump back tells the pass over any gap
        (("01:00:00", "02:50:00", "02:10:00", "03:30:00"), 0,
         ("23:00:00", "00:50:00", "01:10:00", "02:30:00")),
    ],
)  # fmt: skip
def test_a_gap_within_a_repeated_hour_is_not_guessed_over(tmp_path, clocks, ambiguous, utc):
    text = HEADER + "".join(f"2026/10/25 {clock}, 0, 5, 1, 60\n" for clock in clocks)
    outcome = import_text(tmp_path, text, MADRID)
    assert outcome.rejected == ({"time_ambiguous": ambiguous} if ambiguous else {})
    days = ("2026-10-24" if clock.startswith("23") else "2026-10-25" for clock in utc)
    assert samples(tmp_path / "runs", "sampled_unix_ns") == [
        (ns(f"{day}T{clock}+00:00"),) for day, clock in zip(days, utc, strict=True)
    ]


@given(minutes=st.sets(st.integers(0, 59), min_size=1), before=st.integers(-30, -1),
       after=st.integers(60, 90))  # fmt: skip
def test_a_time_in_a_repeated_hour_is_sure_only_where_no_gap_parts_it(minutes, before, after):
    # Minutes from 02:00 on, in one pass or the other: the wall clock never jumps back.
    minute = 60 * S
    times = sorted(minutes)
    found = passes([t * minute for t in times], 60 * minute, before * minute, after * minute)
    steps = [later - sooner for sooner, later in itertools.pairwise([before, *times, after])]
    for place, decided in enumerate(found):
        from_before, to_after = max(steps[: place + 1]) <= 15, max(steps[place + 1 :]) <= 15
        assert decided == (None if from_before == to_after else int(to_after))


def test_each_device_tells_its_own_repeated_hour(tmp_path):
    moments = wall("2025-10-25T23:00:00+00:00", 24)
    rows = [f"{clock}, {gpu}, 5, 1, 60\n" for clock, _ in moments for gpu in (0, 1)]
    import_text(tmp_path, HEADER + "".join(rows), MADRID)
    assert samples(tmp_path / "runs", "sampled_unix_ns") == [(utc,) for _, utc in moments] * 2


@pytest.mark.parametrize(
    ("options", "day"), [({"day_first": True}, "2021-03-04"), ({"day_first": False}, "2021-04-03")]
)
def test_day_and_month_are_asked_and_then_read_as_told(tmp_path, options, day):
    text = "Date,Time,Utilization\n04-03-2021,13:32:39,5\n"
    assert "--day-first or --month-first" in refusal(tmp_path, text)
    import_text(tmp_path, text, ImportOptions(host="h", time_zone="UTC", **options))
    assert samples(tmp_path / "runs", "sampled_unix_ns") == [(ns(f"{day}T13:32:39+00:00"),)]


def test_a_day_above_twelve_tells_the_order_by_itself(tmp_path):
    import_text(tmp_path, "Date,Time,Utilization\n04-23-2021,13:32:39,5\n")
    assert samples(tmp_path / "runs", "sampled_unix_ns") == [(ns("2021-04-23T13:32:39+00:00"),)]


def test_without_a_header_what_stays_open_is_asked_and_fields_answer(tmp_path):
    text = "2026/01/01 00:00:00, 5 %, 5 %, 1 MiB, 2 MiB\n" * 3
    assert "--fields timestamp,?,?,?,?" in refusal(tmp_path, text)
    fields = ("timestamp", "utilization.gpu", "fan.speed", "memory.used", "memory.free")
    import_text(tmp_path, text, ImportOptions(host="h", time_zone="UTC", fields=fields))
    assert samples(tmp_path / "runs", "utilization_share", "memory_used_bytes") == [(0.05, 2**20)]


def test_a_log_of_one_moment_has_each_device_once(tmp_path):
    taken = ImportOptions(host="h", taken_unix_ns=5 * S)
    assert "several rows of gpu-0" in refusal(
        tmp_path, "index,util,gpu_util\n0,1,1\n0,1,2\n", taken
    )


def test_the_same_bytes_again_change_nothing_and_other_options_are_refused(tmp_path):
    text = HEADER + "2026/01/01 00:00:00, 0, 5, 1, 60\n"
    first = import_text(tmp_path, text)
    again = import_text(tmp_path, text, name="renamed")
    assert (first.status, again.status) == (IMPORTED, ALREADY)
    assert again.about == first.about
    why = refusal(tmp_path, text, ImportOptions(host="h", time_zone="Europe/Madrid"))
    assert "another --time-zone" in why
    assert "--rebuild" in why


def test_a_folder_is_imported_file_by_file_and_what_is_not_telemetry_is_told(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.csv").write_text(HEADER + "2026/01/01 00:00:00, 0, 5, 1, 60\n")
    (folder / "b.txt").write_text("notes")
    outcomes = import_telemetry(folder, tmp_path / "runs", UTC)
    assert [one.status for one in outcomes] == ["imported", "refused"]


def test_our_own_journals_are_sent_to_load(tmp_path):
    journal = tmp_path / "p" / "attempt-0" / "journal" / "fact_step"
    journal.mkdir(parents=True)
    (journal / "rank.jsonl").write_text("{}")
    (outcome,) = import_telemetry(tmp_path / "p", tmp_path / "runs", UTC)
    assert "seqscale load" in outcome.reason


@pytest.mark.parametrize(
    "wrong", [{"time_zone": "Mars/Base"}, {"kind": "fax"}, {"interval_s": -1.0}, {"host": " "}]
)
def test_an_option_out_of_its_bounds_is_said(wrong):
    with pytest.raises(ConfigError, match="--"):
        ImportOptions(**wrong)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 5), st.integers(0, 2), st.sampled_from(["1 %", "50 %", "[N/A]", "900"])
    ),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=ROWS, cut=st.integers(0, 12), flip=st.booleans())
def test_pieces_order_and_repeats_give_the_same_samples(tmp_path_factory, rows, cut, flip):
    lines = [f"2026/01/01 00:00:0{s}, {gpu}, {use}, 1, 60\n" for s, gpu, use in rows]
    pieces = [part for part in (lines[:cut], lines[cut:]) if part]
    if flip:
        pieces = [part[::-1] for part in pieces[::-1]]
    whole, parts = (tmp_path_factory.mktemp(name) for name in ("whole", "parts"))
    import_text(whole, HEADER + "".join(lines))
    for number, part in enumerate(itertools.chain(pieces, pieces)):
        import_text(parts, HEADER + "".join(part), name=f"log-{number}")
    names = ("device_id", "sampled_unix_ns", "utilization_share", "memory_used_bytes", "power_w",
             "source_kind", "collector", "host")  # fmt: skip
    assert samples(parts / "runs", *names) == samples(whole / "runs", *names)
