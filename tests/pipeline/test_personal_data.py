"""Personal data: every planted piece is masked, nothing else changes, and no order of work changes the outcome."""

# pyright: basic

import random
import sysconfig
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.clean.personal_data import find_personal_data, mask_personal_data, mask_text
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.clean_recipe import PERSONAL_KINDS
from tests.support.personal_data import kinds_of, plant

KINDS = kinds_of(PERSONAL_KINDS)
PLACEHOLDERS = [placeholder for kind in KINDS for placeholder in kind.placeholders]
PLANTED = 208
"""13 of each kind."""


def hits(text: str) -> list[tuple[str, str]]:
    """Return what counts as personal data in a text: kind and hit."""
    data = text.encode()
    return [(kind.name, data[a:b].decode()) for kind in KINDS for a, b in kind.find(data)]


def masked(texts: list[str]) -> tuple[list[str], Tally]:
    counts = Tally()
    array = pa.array(["john@gmail.com", *texts, "john@gmail.com"], pa.large_string()).slice(1, len(texts))
    found = mask_personal_data(Documents(array, np.arange(len(array), dtype=np.uint32)), PERSONAL_KINDS, counts)
    found.text.validate(full=True)
    return [str(text) for text in found.text.to_pylist()], counts


@pytest.mark.long
def test_every_planted_piece_is_masked_and_nothing_else_changes():
    rng = random.Random(1)
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    files = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    files = [text for text in files if not hits(text)]
    texts: list[str] = []
    around: list[tuple[str, str]] = []
    pieces = plant(PLANTED)
    for text, piece in zip(rng.choices(files, k=PLANTED), pieces, strict=True):
        at = rng.choice([index for index, letter in enumerate(text) if letter == "\n"]) + 1
        begin, end = piece.text.split(piece.secret)
        around.append((text[:at] + begin, end + text[at:]))
        texts.append(text[:at] + piece.text + text[at:])
    after, counts = masked(texts)
    for text, (begin, end), piece in zip(after, around, pieces, strict=True):
        assert text.startswith(begin)
        assert text.endswith(end)
        placeholders = [placeholder.decode() for kind in kinds_of([piece.kind]) for placeholder in kind.placeholders]
        assert text[len(begin) : len(text) - len(end)] in placeholders, piece
    assert counts.masked == Counter(piece.kind for piece in pieces)
    assert sum(find_personal_data(pa.array(texts, pa.large_string()), PERSONAL_KINDS)) == sum(range(PLANTED))


CLEAN = """
@property
@functools.lru_cache(maxsize=None)
user@host, root@localhost, git@github.com:owner/repo.git, me@example.com, you@mail.example.org, a@b.test, x@y.local
icon@2x.png, logo@3x.jpg, package@1.2.3, numpy@1.26.4.post1
C = A@B.T; D = A@weights.transpose(1, 0); E = x@W.dot(y); "%s@%s" % (a, b); f"{user}@{host}"
print(W@x.name, a@b.name, x@weights.name, self.W@self.inputs.name, q@k.shape, (A@B.data).sum(), L@R.grad)
C = P@Q.inv; d = A@B.det
version 12.34.56.78, v12.34.56.78, __version__ = '12.34.56.78', "version": "12.34.56.78", requests>=12.34.56.78
numpy==12.34.56.78, Firefox/12.34.56.78, lib-12.34.56.78, 12.34.56.78-beta, 12.34.56.78.9, x12.34.56.78, 12.34.56.78+git
1.2.3.4, 8.8.8.8, 1.0.0.0, Section 12.34.56.78, see Proposition 12.34.56.78
Article 12.13.14.15, Art. 12.13.14.15, see articles 12.13.14.15, paragraph 12.13.14.15, § 12.13.14.15
10.20.30.40, 127.0.0.1, 169.254.10.10, 172.16.254.1, 192.168.178.20, 100.64.10.10, 255.255.255.0, 224.0.0.251, 0.0.0.10
192.0.2.44, 198.51.100.17, 203.0.113.99, 12.34.56.256, 12.034.56.78, 12.34.56, 12.34.56.789
2026-11-22 12:34:56, 00:1a:2b:3c:4d:5e, std::cout, abc::def, fe80::1:2:3, ::1, 2001:db8::8a2e:370:7334, x[2000::2]
2606:4700:4700:1:2:3:4:5:6, 2606::1::2, 20230:1:2::, fd12:3456:789a:1::1
AKIAIOSFODNN7EXAMPLE, aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY, secret_access_key = None
ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx, hf_token, sk-learn, sk-ant-, AIza, npm_config_registry
glpat-00000000000000000000, xapp-1, https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX
<secretAccessKey></secretAccessKey>, 4539578763621486, 4539 5787 6362 1486, юзер@хост
-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAuV7f0S9CVzXxFxkOEVGbKY
-----END PUBLIC KEY-----
-----BEGIN RSA PRIVATE KEY-----
...
-----END RSA PRIVATE KEY-----
"""


@pytest.mark.parametrize("line", CLEAN.strip().splitlines())
def test_what_is_none(line: str):
    assert hits(line) == []
    assert masked([line])[0] == [line]


RANDOM = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3hI5kL7n"
SLACK_END = f"T{'0A1B2C3D'}/B{'4E5F6G7H'}/{RANDOM[:24]}"
DISCORD_END = f"{'123456789012345678'}/{RANDOM}{RANDOM[:28]}"
FOUND = {
    "<john@gmail.com>": "john@gmail.com",
    "mailto:John.Doe+tag@mail.co.uk?subject=x": "John.Doe+tag@mail.co.uk",
    "...jane@web.de.": "jane@web.de",
    "john@smith.name": "john@smith.name",
    "me@berg.name": "me@berg.name",
    "post@anna.berg.name": "post@anna.berg.name",
    "W@X.NAME or w@shape.com": "w@shape.com",
    "jane@web.de, and": "jane@web.de",
    "https://bob:secret1@host.org/x": "secret1@host.org",
    "jo@xn--mnchen-3ya.de": "jo@xn--mnchen-3ya.de",
    "jürgen@web.de,": "jürgen@web.de",
    "jurgen@kö.de.": "jurgen@kö.de",
    "(почта.моя@пример.рф)": "почта.моя@пример.рф",
    "ju\u0308rgen@web.de": "ju\u0308rgen@web.de",
    "<ईमेलfrom@wők.com>": "ईमेलfrom@wők.com",
    "nguyễn@thư.vn": "nguyễn@thư.vn",
    "联系john@web.de吧": "john@web.de",
    "“john@web.de”": "john@web.de",
    "ping 93.184.216.34:80": "93.184.216.34",
    "http://93.184.216.34/x": "93.184.216.34",
    "from 93.184.216.34 to": "93.184.216.34",
    "::ffff:93.184.216.34": "93.184.216.34",
    "93.184.216.34/24": "93.184.216.34",
    "93.184.216.34.": "93.184.216.34",
    "[2606:4700:4700::1111]:443": "2606:4700:4700::1111",
    "2a00:1450:4001:82a::/64": "2a00:1450:4001:82a::",
    "2606:4700:4700:0:0:0:0:1111": "2606:4700:4700:0:0:0:0:1111",
    "2606::4700:1111": "2606::4700:1111",
    '"SecretAccessKey" : "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3hI5kL7n"': "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3hI5kL7n",
    f"<secretAccessKey>{RANDOM}</secretAccessKey>": RANDOM,
    f"<SecretAccessKey>\n  {RANDOM}\n": RANDOM,
    **{
        f"token: {token}.": token
        for token in (
            f"glpat-{RANDOM[:20]}",
            f"glpat-{RANDOM[:27]}.01.{'1a2b3c4d5'}",
            f"glpat-{RANDOM[:27]}.{'1a2b3c4d5'}",
            f"gldt-{RANDOM[:20]}",
            f"glrt-t3_{RANDOM[:27]}.01.{'1a2b3c4d5'}",
            f"xapp-1-{'A0B1C2D3E4'}-{'123456789012'}-{RANDOM.lower()}{RANDOM[:24].lower()}",
            f"xoxe.xoxp-1-{RANDOM * 4}",
            f"xoxe-1-{RANDOM * 4}",
        )
    },
    f"https://hooks.slack.com/services/{SLACK_END}": SLACK_END,
    f"https://discord.com/api/webhooks/{DISCORD_END}": DISCORD_END,
}


@pytest.mark.parametrize(("text", "hit"), FOUND.items())
def test_what_is_one(text: str, hit: str):
    assert [found for _, found in hits(text)] == [hit]
    assert masked([text])[0] != [text], "the fast pass does not miss it"


def test_a_key_stays_a_block_and_the_text_between_blocks_stays():
    pieces = [piece for piece in plant(PLANTED) if piece.kind == "private_key"]
    text = f"first {pieces[0].text} between, about a -----BEGIN RSA PRIVATE KEY----- line {pieces[1].text} last"
    (after,), counts = masked([text])
    assert counts.masked == {"private_key": 2}
    for piece in pieces[:2]:
        begin, end = piece.text.split(piece.secret)
        text = text.replace(piece.text, f"{begin}EXAMPLE{end}")
        after = after.replace("REDACTED", "EXAMPLE")
    assert after == text


PIECES = "@ . : - :: / a x.com 8.8.4.10 93.184 john é 世 ( 1 25 2606:47 AKIA EXAMPLE xxxx = + рф glpat- .01."
ALPHABET = [
    *(*PIECES.split(), " ", "\n", "version ", "\xa0"),
    *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"),
    *(placeholder.decode() for placeholder in PLACEHOLDERS),
    *(piece.text for piece in plant(32, seed=7)),
    *(piece.secret for piece in plant(32, seed=8)),
]
TEXTS = st.lists(st.sampled_from(ALPHABET), max_size=14).map("".join)


@given(TEXTS)
@example("@@-o-k543@faauoxv.mail.fro-k543@faauoxv.mail.fr")  # a domain that goes on
@example("2a02:170a:93f6::192.0.2.64")  # an address in an address
def test_masking_twice_is_masking_once(text: str):
    once = mask_text(text.encode(), KINDS, Tally())
    counts = Tally()
    assert mask_text(once, KINDS, counts) == once
    assert not counts.masked
    once.decode()


@given(st.lists(TEXTS, max_size=6), st.randoms(use_true_random=False))
def test_a_document_is_masked_by_itself_alone(texts: list[str], rng: random.Random):
    """The reference masks one text at a time, with every kind, without the fast pass."""
    reference = Tally()
    expected = [mask_text(text.encode(), KINDS, reference).decode() for text in texts]
    found, counts = masked(texts)
    assert found == expected
    assert counts.masked == reference.masked
    order = rng.sample(range(len(texts)), len(texts))
    assert masked([texts[index] for index in order])[0] == [expected[index] for index in order]


def test_placeholders_depend_on_the_document_and_on_the_hit():
    texts = [f"{number} mail ann@web.de and bob@web.de and ann@web.de" for number in range(50)]
    after, _ = masked(texts)
    used = [tuple(word for word in text.split() if "@" in word) for text in after]
    assert all(first == third for first, _, third in used), "one address has one placeholder in a document"
    assert len({first for first, _, _ in used}) > 4
    assert sum(first != second for first, second, _ in used) > 30
    assert all(placeholder.encode() in PLACEHOLDERS for words in used for placeholder in words)


REPEATED = "a,a.,a@,a@b.,@,1,1.,12.34.56.78.,2606:,-,----,sk-,xoxb-1, ,secret_access_key = ,version ,%40,a-"
BEGIN = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize("piece", [*REPEATED.split(","), BEGIN, f"{BEGIN}a"])
def test_no_text_takes_more_than_linear_time(piece: str):
    data = (piece * (1 << 18))[: 1 << 18].encode()
    started = time.process_time()
    for kind in KINDS:
        list(kind.find(data))
    assert time.process_time() - started < 2.5
