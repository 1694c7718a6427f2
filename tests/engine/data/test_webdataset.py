"""WebDataset archives: members of one key as a sample, braces in names, and archives that are damaged or lie."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.engine.data.test_datasets import png, write
from tests.support.saved_datasets import tar
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.data.sources.shard_names import shard_names


def members(start: int, stop: int, ending: str = "png") -> list[tuple[str | tarfile.TarInfo, bytes]]:
    made: list[tuple[str | tarfile.TarInfo, bytes]] = []
    for i in range(start, stop):
        about = {"caption": f"picture {i}", "topic": ["a", "b"][i % 2]}
        made += [(f"in/{i:04d}.{ending}", png((i, 0, 0))), (f"in/{i:04d}.cls", str(i % 3).encode())]
        made.append((f"in/{i:04d}.json", json.dumps(about).encode()))
    return made


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for shard in range(3):
        tar(tmp_path / f"birds-train-{shard:06d}.tar", members(4 * shard, 4 * shard + 4, ["png", "jpg"][shard % 2]))
    return tmp_path


def test_pictures_and_their_classes(shards: Path) -> None:
    data = open_dataset(shards, "vision")
    assert (data.split, data.num_samples, data.labels, data.notes) == ("train", 12, ("0", "1", "2"), [])
    samples = list(data)
    assert [s.image.getpixel((0, 0))[0] for s in samples] == list(range(12))
    assert [s.label for s in samples] == [str(i % 3) for i in range(12)]
    assert samples[5].source == "birds-train-000001.tar in/0005"
    assert [s.label for s in open_dataset(shards, "vision", label_column="topic")][:2] == ["a", "b"]
    jpg = open_dataset(shards, "vision", image_column="jpg")
    assert jpg.num_samples == 4
    assert jpg.notes == ["8 samples without .jpg are passed over"]


def test_texts_of_members_and_of_json_fields(tmp_path: Path, shards: Path) -> None:
    data = open_dataset(shards, "text", text_column="caption", label_column="topic", passage_chars=5)
    assert [s.text for s in data][:2] == ["pictu", "re 0"]
    file = tar(
        tmp_path / "t.tar", [("1.txt", "\ufeffgrün".encode()), ("1.cls", b"x\n"), ("2.txt", b"\xff"), ("3.md", b"-")]
    )
    with pytest.raises(UserError, match=r"t\.tar, member 2\.txt or \.md: is not UTF-8"):
        list(open_dataset(file, "text"))
    data = open_dataset(file, "text", skip_bad=True)
    assert [(s.text, s.label) for s in data] == [("grün", "x"), ("-", None)]
    with pytest.raises(UserError, match=r"no members ending in \.body; the endings are: cls, md, txt"):
        open_dataset(file, "text", text_column="body")


def test_shards_by_braces(shards: Path) -> None:
    pattern = str(shards / "birds-train-{000000..000002}.tar")
    data = open_dataset(pattern, "vision")
    assert (data.name, data.split, data.num_samples) == ("birds-train", "train", 12)
    parts = [data.shard(part, 3, 2) for part in (1, 2, 3)]
    assert [s.source for part in parts for s in part] == [s.source for s in data]
    assert open_dataset(shards / "birds-train-{000000,000002}.tar", "vision").num_samples == 8
    with pytest.raises(UserError, match=r"no file '.*birds-train-000003\.tar' \(1 of the 4"):
        open_dataset(shards / "birds-train-{000000..000003}.tar", "vision")
    with pytest.raises(UserError, match="braces are for shards"):
        open_dataset(write(shards / "1.txt", "x").with_name("{1,1}.txt"), "text")
    assert shard_names("plain.tar") == []
    for endless in ("{0..9999999999999}.tar", "{5..1}.tar", "{0..99999}{0..99999}.tar"):
        with pytest.raises(UserError, match="100,000 files"):
            shard_names(endless)


def test_links_devices_and_names_that_lead_out_are_not_followed(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.txt", "secret")
    odd = []
    for name, kind in (("2.txt", tarfile.SYMTYPE), ("3.txt", tarfile.LNKTYPE), ("4.txt", tarfile.CHRTYPE)):
        header = tarfile.TarInfo(name)
        header.type, header.linkname = kind, str(secret)
        odd.append((header, b""))
    file = tar(tmp_path / "a.tar", [("../../../1.txt", b"one"), *odd, ("/etc/passwd.txt", b"two"), ("noending", b"-")])
    before = sorted(tmp_path.rglob("*"))
    data = open_dataset(file, "text")
    assert [(s.text, s.source) for s in data] == [("one", "a.tar ../../../1"), ("two", "a.tar /etc/passwd")]
    assert (
        "3 members that are no plain file (links, devices, sparse) are passed over (the first: a.tar: 2.txt)"
        in data.notes
    )
    assert "1 member without a key and an ending is passed over (a.tar: noending)" in data.notes
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    file = tar(
        tmp_path / "a.tar",
        [
            ("1.txt", b"one"),
            ("1.txt", b"again"),
            ("1.json", b"{"),
            ("2.json", b"{}"),
            ("3.txt", b"three"),
            ("3.md", b"x"),
        ],
    )
    data = open_dataset(file, "text", label_column=None)
    assert [s.text for s in data] == ["one", "three"]
    said = "; ".join(data.notes)
    for words in (
        "1 member whose key and ending another one has before is passed over (a.tar: 1.txt)",
        "1 sample without .txt or .md is passed over",
        "1 member of samples with several pictures or texts is not read",
    ):
        assert words in said
    with pytest.raises(UserError, match="no images"):
        open_dataset(file, "vision")


def ending_of(file: Path) -> str:
    """What is said of an archive when it is opened: its error, or its notes."""
    try:
        return "; ".join(open_dataset(file, "vision", skip_bad=True).notes)
    except UserError as error:
        return str(error)


def test_archives_cut_off_name_the_member(tmp_path: Path) -> None:
    whole = tar(tmp_path / "whole.tar", members(0, 4)).read_bytes()
    file = tmp_path / "a.tar"
    for length in range(0, 12 * 1024, 300):
        file.write_bytes(whole[:length])
        said = ending_of(file)
        assert "a.tar: is" in said or "1 archive without the empty blocks at the end may be cut off (a.tar)" in said
        assert length < 1500 or length % 512 == 0 or "member 'in/0" in said
    broken = bytearray(whole)
    broken[2048:2560] = b"\1" * 512
    file.write_bytes(broken)
    with pytest.raises(UserError, match="is damaged after member 'in/0000.cls'"):
        open_dataset(file, "vision")
    file.write_bytes(whole + whole)
    assert "1 archive with bytes behind the end is read to that end only (a.tar)" in open_dataset(file, "vision").notes


def test_sizes_that_lie(tmp_path: Path) -> None:
    for size in (b"\xff" * 12, b"\x80" + b"\x7f" * 11, b"77777777777\0"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("1.txt"))
        header = bytearray(buffer.getvalue()[:512])
        header[124:136] = size
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        write(tmp_path / "a.tar", bytes(header) + buffer.getvalue()[512:])
        with pytest.raises(UserError, match=r"a\.tar"):
            open_dataset(tmp_path / "a.tar", "text")
    with (tmp_path / "b.tar").open("wb") as file:
        header = tarfile.TarInfo("1.txt")
        header.size = 20 << 20
        file.write(header.tobuf())
        file.truncate((20 << 20) + 2048)
    data = open_dataset(tmp_path / "b.tar", "text", skip_bad=True)
    with pytest.raises(UserError, match="larger than 16 MB"):
        list(data)
