"""An archive that holds anything else than what was built does not start, and the message names the file."""

from __future__ import annotations

import zipfile

import pytest

from handlers.sums import find_changed_files, find_damage, parse_sums
from server.archives import check_packed, read_archive
from server.errors import ServerError
from tests.server.fakes import make_archive


@pytest.fixture
def file(tmp_path):
    return make_archive(tmp_path / "echo.mar")


def rewrite(file, **changed):
    """The same archive with other members."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, body in {**members, **changed}.items():
            archive.writestr(name, body)
    return read_archive(file)


def test_a_changed_archive_is_refused_with_the_file_and_the_cure(file):
    archive = rewrite(file, **{"canary.txt": b"hallo"})
    with pytest.raises(ServerError, match=f"{file}: .*canary.txt has .*make models MODELS=echo"):
        check_packed([archive])


def test_a_file_that_was_put_in_is_named(file):
    rewrite(file, **{"handler.py": b"import os"})
    assert find_damage(file) == "handler.py was not built in"


def test_a_file_that_is_packed_twice_is_damage(file):
    # TorchServe unpacks one of them, Python's reader another.
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("canary.txt", "hello")
    assert find_damage(file) == "canary.txt is damaged"


def test_a_flipped_block_is_damage(file):
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"expected"', b'"ex\0ected"', 1))
    assert find_damage(file) == "definition.json is damaged"


def test_sums_that_were_rewritten_make_another_archive(file):
    before = read_archive(file).archive_id
    sums = "".join(
        f"{digest}  {name}\n" for name, digest in parse_sums(read_archive(file).sums.decode()).items()
    )
    assert rewrite(file, SHA256SUMS=f"{sums}{'0' * 64}  more.py\n").archive_id != before


def test_what_is_unpacked_is_judged_by_the_same_sums(file, tmp_path):
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)
    assert find_changed_files(read_archive(file).sums, folder) == []
    (folder / "canary.txt").unlink()
    (folder / "SHA256SUMS").write_text("")
    (folder / "more").symlink_to(tmp_path)
    changes = find_changed_files(read_archive(file).sums, folder)
    assert [change[:24] for change in changes] == [
        "SHA256SUMS has sha256 e3",
        "canary.txt is missing",
        "more was not built in",
    ]
