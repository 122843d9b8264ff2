"""Folders and files that only their owner can open, whatever the umask.

What tells of single people lies below such a folder; what is published, the warehouse and the
exports, lies outside of them.

Before: flows/request.py, flows/steps.py, flows/training_steps.py.   After: the disk.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def private_folder(folder: Path) -> Path:
    """Make a folder that only its owner can enter; one that is there becomes so."""
    folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    if folder.stat().st_mode & 0o077:  # made by an earlier version, or by an open umask's parent
        folder.chmod(FOLDER_MODE)
    return folder


def close_files(folder: Path) -> None:
    """Leave a folder's files to their owner alone."""
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(FILE_MODE)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file aside, for its owner alone, and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    aside.touch(mode=FILE_MODE)
    aside.write_text(text + "\n", encoding="utf-8")
    aside.replace(path)
