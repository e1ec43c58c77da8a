"""Faults of the folder, the manifest and the shards' own metadata."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.support.faults import edit, names, reseal


@names("manifest_missing")
def manifest_missing(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@names("manifest_invalid")
def manifest_cut_short(folder: Path) -> None:
    data = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(data[: len(data) // 2])


@names("manifest_invalid")
def manifest_is_not_text(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"\xff\xfe\x00")


@names("manifest_invalid")
def manifest_nests_without_end(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"name":' + "[" * 100_000)


@names("manifest_invalid")
def manifest_too_large(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 1 << 40)  # sparse: takes no disk, and must take no memory


@names("manifest_invalid")
def manifest_has_unknown_key(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(author="x"))


@names("manifest_invalid")
def manifest_share_is_not_a_number(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"requested": 0.75', '"requested": NaN'))


@names("format_unknown")
def format_unknown(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(format="mosaic"))


@names("version_unknown")
def version_unknown(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(format_version=4))


@names("path_unsafe")
def path_absolute(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["shards"][0]["files"]["tokens"].update(path="/etc/passwd"))


@names("path_unsafe")
def path_to_parent(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["tokenizer"].update(file="../tokenizer.json"))


@names("path_unsafe")
def path_with_folder(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["shards"][1]["files"]["metadata"].update(path="a/b.json"))


@names("file_missing")
def link_to_nothing(folder: Path) -> None:
    (folder / "train-00000.bin.zst").rename(folder.parent / "outside.bin.zst")
    (folder / "train-00000.bin.zst").symlink_to(folder.parent / "inside.bin.zst")


@names("file_unreadable")
def link_to_a_folder(folder: Path) -> None:
    (folder / "train-00000.bin.zst").unlink()
    (folder / "train-00000.bin.zst").symlink_to(folder.parent)


@names("file_checksum")
def link_to_another_file(folder: Path) -> None:
    outside = folder.parent / "outside.json"
    outside.write_text((folder / "recipe.json").read_text() + "\n")
    (folder / "recipe.json").unlink()
    (folder / "recipe.json").symlink_to(outside)


@names("file_unreadable")
def folder_in_place_of_a_file(folder: Path) -> None:
    (folder / "train-00001.docs.parquet").unlink()
    (folder / "train-00001.docs.parquet").mkdir()


@names("file_unreadable")
def pipe_in_place_of_a_file(folder: Path) -> None:
    (folder / "train-00001.bin.zst").unlink()
    os.mkfifo(folder / "train-00001.bin.zst")


@names("file_missing")
def shard_missing(folder: Path) -> None:
    for path in folder.glob("train-00001.*"):
        path.unlink()


@names("file_missing")
def tokenizer_missing(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@names("file_foreign")
def foreign_shard(folder: Path) -> None:
    (folder / "train-00002.bin.zst").write_bytes(b"")


@names("file_foreign")
def leftover_of_an_interrupted_build(folder: Path) -> None:
    (folder / ".train-00001.bin.zst.4711.tmp").write_bytes(b"half")


@names("manifest_invalid", "totals_mismatch", "file_foreign", "mix_share")
def shard_unlisted(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["shards"].pop(0))


@names("manifest_invalid")
def shard_listed_twice(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["shards"].insert(1, manifest["shards"][0]))


@names("manifest_invalid")
def file_listed_twice(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["recipe"].update(file="tokenizer.json"))


@names("totals_mismatch")
def split_total_wrong(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["splits"]["val"].update(tokens=manifest["splits"]["val"]["tokens"] + 1))


@names("totals_mismatch")
def split_source_total_wrong(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["splits"]["train"]["sources"]["code"].update(documents=1))


@names("totals_mismatch")
def split_not_listed(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["splits"].pop("val"))


@names("totals_mismatch")
def achieved_share_wrong(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["mix"][0].update(achieved=0.9))


@names("totals_mismatch")
def requested_share_is_not_the_weight(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["sources"][0].update(weight=4.0))


@names("totals_mismatch")
def more_taken_than_available(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["sources"][1].update(tokens_available=1000))


@names("manifest_invalid")
def mix_lacks_a_source(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["mix"].reverse())


@names("sidecar_mismatch")
def sidecar_disagrees(folder: Path) -> None:
    edit(folder, lambda sidecar: sidecar.update(tokens_sha256="0" * 64), "train-00000.json")
    reseal(folder)


@names("sidecar_mismatch", "file_checksum")
def sidecar_of_another_shard(folder: Path) -> None:
    one, two = folder / "train-00000.json", folder / "train-00001.json"
    first, second = one.read_text(), two.read_text()
    size = max(len(first), len(second))
    one.write_text(second.ljust(size))
    two.write_text(first.ljust(size))
    edit(folder, lambda manifest: [e["files"]["metadata"].update(bytes=size) for e in manifest["shards"][:2]])


@names("version_unknown")
def sidecar_of_another_version(folder: Path) -> None:
    edit(folder, lambda sidecar: sidecar.update(format_version=9), "val-00000.json")
    reseal(folder, "val-00000")


@names("tokenizer_mismatch")
def tokenizer_changed(folder: Path) -> None:
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")


@names("tokenizer_mismatch", "sidecar_mismatch")
def tokenizer_of_another_size(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(vocab_size=301))


@names("tokenizer_mismatch")
def special_token_has_another_id(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["tokenizer"]["special_tokens"].update({"<|pad|>": 5}))


@names("sidecar_mismatch", "eos_misplaced")
def eos_is_another_token(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["tokenizer"].update(eos_id=299))


@names("sidecar_mismatch", "bos_misplaced")
def bos_that_no_document_has(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(format_version=3))
    edit(folder, lambda manifest: manifest["tokenizer"].update(bos_id=299))


@names("tokenizer_mismatch", "sidecar_mismatch", "bos_misplaced")
def bos_is_eos(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(format_version=3))
    edit(folder, lambda manifest: manifest["tokenizer"].update(bos_id=manifest["tokenizer"]["eos_id"]))


@names("file_checksum")
def recipe_changed(folder: Path) -> None:
    (folder / "recipe.json").write_text("{}")


def block_list(file: str, **counts: int) -> dict[str, Any]:
    return {"file": file, "sha256": "0" * 64, "hashes": 3, "found": 3, "documents": 3} | counts


@names("totals_mismatch")
def block_list_documents_not_those_of_the_sources(folder: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["drop_hashes"] = [block_list("a.txt", documents=4)]
        manifest["sources"][0]["dropped"]["in block list a.txt"] = 2
        manifest["sources"][1]["dropped"]["in block list a.txt"] = 1

    edit(folder, change)


@names("totals_mismatch")
def block_list_found_more_than_it_holds(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["drop_hashes"].append(block_list("a.txt", found=4, documents=0)))


@names("totals_mismatch")
def block_list_listed_twice(folder: Path) -> None:
    lists = [block_list("a.txt", documents=0), block_list("a.txt", documents=0)]
    edit(folder, lambda manifest: manifest.update(drop_hashes=lists))


@names("totals_mismatch")
def documents_dropped_for_a_list_that_is_not_there(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["sources"][0]["dropped"].update({"in block list b.txt": 2}))


@names("dtype_mismatch")
def dtype_wrong(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(dtype="uint32"))


@names("seek_table", "sidecar_mismatch", "totals_mismatch", "document_table", "source_sum")
def sizes_absurd(folder: Path) -> None:
    def claim(manifest: dict[str, Any]) -> None:
        for counts in (manifest["shards"][0], manifest["shards"][0]["sources"]["prose"], manifest["splits"]["train"]):
            counts.update(tokens=10**15)

    edit(folder, claim)


@names("sidecar_mismatch", "totals_mismatch", "document_table")
def documents_absurd(folder: Path) -> None:
    def claim(manifest: dict[str, Any]) -> None:
        for counts in (manifest["shards"][0], manifest["shards"][0]["sources"]["prose"], manifest["splits"]["train"]):
            counts.update(documents=10**15)

    edit(folder, claim)


@names("file_size", "sidecar_mismatch")
def file_size_absurd(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["shards"][0]["files"]["documents"].update(bytes=10**18))
