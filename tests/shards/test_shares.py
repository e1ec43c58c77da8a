"""The share check: never a false alarm on sets cut as they should be, always one beyond a document."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.format.manifest import SourceCounts
from shards.validation.validate import check_mix_shares


def no_files(shard):
    """Return the entries of a shard's files, which the share check does not look at."""
    kinds = ("tokens", "documents", "metadata")
    return {kind: {"path": f"{shard}.{kind}", "bytes": 0, "sha256": "0" * 64} for kind in kinds}


def cut_at_nearest(lengths, targets, *, longest=None):
    """Return the tokens between cuts, each cut at the document boundary nearest to its target.

    With `longest` (of the documents before these), the last cut takes one document more where the nearest boundary
    would fall short by more than half of the longest document taken: the document left out is then longer than any
    that a reader of the set can see.
    """
    ends = [0, *itertools.accumulate(lengths)]
    places = [min(range(len(ends)), key=lambda i: (abs(ends[i] - target), i)) for target in targets]
    if longest is not None:
        taken = max([longest, *lengths[: places[-1]]])
        if 2 * (targets[-1] - ends[places[-1]]) > taken:
            places[-1] += 1
    return [ends[j] - ends[i] for i, j in itertools.pairwise([0, *places])]


def manifest_of(weights, tokens_by_source, requested, val_requested=0, train_requested=None):
    """Return a manifest, as far as the share check looks."""
    from shards.format.manifest import Manifest

    shards = []
    for split, rows in tokens_by_source.items():
        for index, row in enumerate(rows):
            sources = {str(s): SourceCounts(tokens=tokens, documents=1) for s, tokens in enumerate(row)}
            shards.append(
                {
                    "name": f"{split}-{index:05d}",
                    "split": split,
                    "tokens": sum(row),
                    "documents": len(row),
                    "sources": {name: counts.model_dump() for name, counts in sources.items()},
                    "tokens_sha256": "0" * 64,
                    "files": no_files(f"{split}-{index:05d}"),
                }
            )
    total = sum(sum(row) for row in tokens_by_source["train"])
    mix = []
    for s, weight in enumerate(weights):
        held = sum(row[s] for row in tokens_by_source["train"])
        mix.append(
            {
                "source": str(s),
                "requested": weight / sum(weights),
                "achieved": held / max(total, 1),
                "requested_tokens": requested[s],
                "achieved_tokens": held,
            }
        )
    return Manifest.model_validate(
        {
            "name": "x",
            "dtype": "uint16",
            "vocab_size": 300,
            "tokenizer": {"file": "t", "sha256": "0" * 64, "eos_id": 0, "special_tokens": {}},
            "recipe": {"file": "r", "sha256": "0" * 64},
            "sources": [],
            "mix": mix,
            "splits": {
                split: {"requested_tokens": tokens, "tokens": 0, "documents": 0, "sources": {}}
                for split, tokens in {"train": train_requested or sum(requested), "val": val_requested}.items()
                if split in tokens_by_source
            },
            "shards": shards,
        }
    )


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_nearest_cuts_never_raise_an_alarm(data):
    """The tolerance is the longest document in the set, which is all that a reader of the set can know."""
    weights = data.draw(st.lists(st.integers(1, 100), min_size=1, max_size=4))
    documents = [data.draw(st.lists(st.integers(1, 400), min_size=5, max_size=60)) for _ in weights]
    num_val, num_train = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    shares = [Fraction(weight, sum(weights)) for weight in weights]
    # Validation and training together take at most what the scarcest source has.
    most = int(min(sum(lengths) / share for lengths, share in zip(documents, shares, strict=True)))
    val_total = data.draw(st.integers(0, most // 3))
    held = {"val": [[] for _ in range(num_val)], "train": [[] for _ in range(num_train)]}
    longest = {}
    rests = []
    for lengths, share in zip(documents, shares, strict=True):
        targets = [int(share * val_total * (k + 1) / num_val) for k in range(num_val)]
        cuts = cut_at_nearest(lengths, targets, longest=0)
        for k, tokens in enumerate(cuts):
            held["val"][k].append(tokens)
        rest, skip = list(lengths), sum(cuts)
        while skip:
            skip -= rest.pop(0)
        rests.append(rest)
    train_total = int(min(sum(rest) / share for rest, share in zip(rests, shares, strict=True)))
    for s, (rest, share) in enumerate(zip(rests, shares, strict=True)):
        targets = [int(share * train_total * (k + 1) / num_train) for k in range(num_train)]
        in_val = documents[s][: len(documents[s]) - len(rest)]
        cuts = cut_at_nearest(rest, targets, longest=max(in_val, default=0))
        in_train = [n for n, end in zip(rest, itertools.accumulate(rest), strict=True) if end <= sum(cuts)]
        longest[str(s)] = max([*in_val, *in_train], default=0)
        for k, tokens in enumerate(cuts):
            held["train"][k].append(tokens)
    requested = [share * train_total for share in shares]
    manifest = manifest_of(weights, held, [int(tokens) for tokens in requested], val_total, train_total)
    assert check_mix_shares(manifest, longest) == []


@pytest.mark.parametrize("off", [11, -11, 500])
def test_more_than_a_document_off_is_named(off):
    longest = {"0": 5, "1": 5}
    good = manifest_of([3, 1], {"train": [[750, 250], [750, 250]]}, [1500, 500])
    assert check_mix_shares(good, longest) == []
    set_off = manifest_of([3, 1], {"train": [[750 + off, 250], [750, 250]]}, [1500, 500])
    assert {p.where for p in check_mix_shares(set_off, longest)} == {"manifest.json", "train-00000"}
    shards_off = manifest_of([3, 1], {"train": [[750 + off, 250], [750 - off, 250]]}, [1500, 500])
    assert [p.where for p in check_mix_shares(shards_off, longest)] == ["train-00000", "train-00001"]
