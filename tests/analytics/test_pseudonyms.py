"""Pseudonyms are HMAC-SHA-256 by the book, and the key is nobody's but the user's."""

import contextlib
import copy
import dataclasses
import hashlib
import hmac
import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from analytics import pseudonyms
from analytics.errors import ConfigError
from analytics.pseudonyms import (
    PseudonymKey,
    default_key_path,
    find_key,
    load_key,
    pseudonym_sql,
)

SECRET = "correct horse battery staple"
HEX = "00112233445566778899aabbccddeeff" * 2


def in_sql(key: PseudonymKey, *ids: str) -> list[str]:
    inner, outer = key.pads()
    with duckdb.connect() as connection:
        return [
            connection.execute(
                f"SELECT {pseudonym_sql('$id')}", {"id": one, "inner": inner, "outer": outer}
            ).fetchall()[0][0]
            for one in ids
        ]


def home(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(tmp_path), **more}


def key_file(tmp_path: Path, content: bytes = HEX.encode(), mode: int = 0o600) -> Path:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


# the hash


@pytest.mark.parametrize(
    ("secret", "text", "first_128_bits"),
    [  # RFC 4231, test cases 1, 2, 5 (which is itself cut to 128 bits), 6 and 7
        (b"\x0b" * 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b"),
        (b"Jefe", "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c7"),
        (b"\x0c" * 20, "Test With Truncation", "a3b6167473100ee06e0c796c2955552b"),
        (
            b"\xaa" * 131,
            "Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f",
        ),
        (
            b"\xaa" * 131,
            "This is a test using a larger than block-size key and a larger than block-size data. "
            "The key needs to be hashed before being used by the HMAC algorithm.",
            "9b09ffa71b942fcb27635fbcd5b0e944",
        ),
    ],
)
def test_the_vectors_of_rfc_4231(secret: bytes, text: str, first_128_bits: str) -> None:
    key = PseudonymKey(secret=secret, where="here")
    assert key.pseudonym(text) == first_128_bits
    assert in_sql(key, text) == [first_128_bits]


def test_sql_equals_the_standard_library_for_any_id_and_key() -> None:
    ids = ["7", " 7", "Zoë", "Zoe\u0308", "用户-17", "👩‍👩‍👧", "a'b\"c", "x" * 10_000, "a\nb\tc"]
    for length in (1, 16, 63, 64, 65, 200):
        secret = bytes(range(length))
        expected = [hmac.digest(secret, one.encode(), hashlib.sha256).hex()[:32] for one in ids]
        key = PseudonymKey(secret=secret, where="here")
        assert in_sql(key, *ids) == expected
        assert [key.pseudonym(one) for one in ids] == expected
        assert len(set(expected)) == len(ids)


# where a key comes from


def test_hex_digits_are_bytes_and_other_text_is_itself(tmp_path: Path) -> None:
    as_hex = find_key({pseudonyms.KEY_VARIABLE: HEX})
    as_text = find_key({pseudonyms.KEY_VARIABLE: SECRET})
    assert as_hex is not None and as_text is not None
    assert as_hex.pseudonym("7") == hmac.digest(bytes.fromhex(HEX), b"7", "sha256").hex()[:32]
    assert as_text.pseudonym("7") == hmac.digest(SECRET.encode(), b"7", "sha256").hex()[:32]
    for content in (SECRET, SECRET + "\n", SECRET + "\r\n"):
        path = key_file(tmp_path, content.encode())
        in_file = find_key({pseudonyms.FILE_VARIABLE: str(path)})
        assert in_file is not None and in_file.key_id == as_text.key_id


def test_a_key_is_made_once_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = load_key(home(tmp_path))
    finally:
        os.umask(before)
    path = tmp_path / ".config" / "seqscale" / "pseudonym.key"
    assert made.is_new
    assert made.key.where == str(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700
    assert len(bytes.fromhex(path.read_text().strip())) == 32
    again = load_key(home(tmp_path))
    assert not again.is_new
    assert again.key.key_id == made.key.key_id
    assert list(path.parent.iterdir()) == [path]


def test_looking_for_a_key_makes_none(tmp_path: Path) -> None:
    assert find_key(home(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_two_processes_at_once_end_with_one_key(tmp_path: Path) -> None:
    code = "from analytics.pseudonyms import load_key; print(load_key().key.key_id)"
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    for name in ("XDG_CONFIG_HOME", pseudonyms.KEY_VARIABLE, pseudonyms.FILE_VARIABLE):
        environment.pop(name, None)
    children = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    answers = {child.communicate(timeout=60)[0] for child in children}
    assert len(answers) == 1 and len(answers.pop()) == 17


def test_the_slower_of_two_takes_the_key_of_the_faster(tmp_path: Path) -> None:
    path = default_key_path(home(tmp_path))
    assert pseudonyms._make(path)
    first = path.read_bytes()
    assert not pseudonyms._make(path)
    assert path.read_bytes() == first
    assert list(path.parent.iterdir()) == [path]


def test_the_configuration_folder_is_xdgs_when_it_says_so(tmp_path: Path) -> None:
    place = tmp_path / "conf"
    expected = place / "seqscale" / "pseudonym.key"
    assert default_key_path(home(tmp_path, XDG_CONFIG_HOME=str(place))) == expected
    relative = default_key_path(home(tmp_path, XDG_CONFIG_HOME="conf"))  # to be ignored, says XDG
    assert relative == tmp_path / ".config" / "seqscale" / "pseudonym.key"


# failures


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (b"", 0o600, "key is empty, expected a key"),
        (b"\n", 0o600, "key is empty, expected a key"),
        (b"short", 0o600, "has 5 bytes; a key needs at least 16.*openssl rand -hex 32"),
        (HEX.encode(), 0o640, r"others can read or change the key \(mode 0640\).*chmod 600"),
        (HEX.encode(), 0o604, r"mode 0604"),
        (HEX.encode(), 0o622, r"mode 0622"),
        (b"k" * 5000, 0o600, "longer than 4096 bytes"),
    ],
)
def test_a_file_that_is_no_key_or_open_to_others_is_refused(
    tmp_path: Path, content: bytes, mode: int, message: str
) -> None:
    path = key_file(tmp_path, content, mode)
    with pytest.raises(ConfigError, match=message) as raised:
        find_key({pseudonyms.FILE_VARIABLE: str(path)})
    assert HEX not in str(raised.value)


def test_what_is_not_a_file_is_refused_and_does_not_hold_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, message in [("pipe", "not a file"), ("", "not a file"), ("gone", "cannot be read")]:
        with pytest.raises(ConfigError, match=message):
            find_key({pseudonyms.FILE_VARIABLE: str(tmp_path / name)})


def test_two_variables_or_an_empty_one_are_refused(tmp_path: Path) -> None:
    both = {pseudonyms.KEY_VARIABLE: HEX, pseudonyms.FILE_VARIABLE: "key"}
    with pytest.raises(ConfigError, match="both set; unset"):
        load_key(both)
    with pytest.raises(ConfigError, match="SEQSCALE_PSEUDONYM_KEY is empty"):
        load_key(home(tmp_path, SEQSCALE_PSEUDONYM_KEY=""))
    with pytest.raises(ConfigError, match="KEY_FILE is empty"):
        load_key(home(tmp_path, SEQSCALE_PSEUDONYM_KEY_FILE=""))


def test_an_existing_key_that_others_can_read_or_exchange_is_refused(tmp_path: Path) -> None:
    load_key(home(tmp_path))
    path = default_key_path(home(tmp_path))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"others can read or change the key.*chmod 600"):
        load_key(home(tmp_path))
    path.chmod(0o600)
    path.parent.chmod(0o770)
    with pytest.raises(ConfigError, match=r"others can exchange the key.*chmod 700"):
        load_key(home(tmp_path))


def test_a_link_that_somebody_else_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = default_key_path(home(tmp_path))
    path.parent.mkdir(parents=True, mode=0o700)
    path.symlink_to(key_file(tmp_path))
    assert find_key(home(tmp_path)) is not None  # one's own link is as good as the file
    path.unlink()
    path.symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_key(home(tmp_path))
    if os.getuid() == 0:  # only root can give a link away
        os.lchown(path, 12345, 12345)
        with pytest.raises(ConfigError, match=r"link that somebody else has made \(user 12345\)"):
            load_key(home(tmp_path))


def test_a_home_that_cannot_be_written_names_what_to_do(tmp_path: Path) -> None:
    (tmp_path / ".config").write_text("a file where a folder is needed")
    with pytest.raises(
        ConfigError, match=r"SEQSCALE_PSEUDONYM_KEY_FILE.*SEQSCALE_PSEUDONYM_KEY.*--keep-user-ids"
    ):
        load_key(home(tmp_path))


# silence


def test_nothing_shows_the_key(caplog: pytest.LogCaptureFixture) -> None:
    key = PseudonymKey(secret=SECRET.encode(), where="here")

    @dataclasses.dataclass
    class Holder:
        key: PseudonymKey

    def attempt(show) -> str:  # type: ignore[no-untyped-def]
        try:
            return str(show())
        except Exception as error:
            return f"{error!r} {error}"

    caplog.set_level(logging.DEBUG)
    logging.getLogger("test").info("%s %r %s", key, key, Holder(key))
    shown = [
        repr(key), str(key), f"{key}", caplog.text, repr(Holder(key)),
        *(attempt(show) for show in [
            lambda: json.dumps(key), lambda: json.dumps(key, default=str),
            lambda: dataclasses.asdict(Holder(key)), lambda: vars(key), lambda: pickle.dumps(key),
            lambda: copy.deepcopy(key), lambda: copy.copy(key), lambda: key.pseudonym("\udcff"),
        ]),
    ]  # fmt: skip
    for text in shown:
        assert SECRET not in text
        assert SECRET.encode().hex() not in text
    assert key.key_id in repr(key)


def test_a_key_that_is_refused_is_not_repeated_in_the_message() -> None:
    with contextlib.suppress(ConfigError):
        find_key({pseudonyms.KEY_VARIABLE: "tooshort-secret"})
        pytest.fail("15 bytes were taken")
    with pytest.raises(ConfigError) as raised:
        find_key({pseudonyms.KEY_VARIABLE: "tooshort-secret"})
    assert "tooshort" not in str(raised.value)
