"""Kinds of personal data: what counts as a hit, and what takes its place.

A kind has a pattern for Python's `re` over bytes, and a hint in RE2's syntax: every text with a hit also matches the
hint, so that one fast pass of RE2 finds the few documents that are searched. Any byte of a character outside ASCII is
a boundary, but for letters of e-mail addresses. Every repetition is bounded or cannot begin again inside itself, so
that the time is linear in the text. A pattern begins with characters, not with a look back: `re` then skips to these,
twice as fast.

A placeholder is never a hit: masking masked text changes nothing.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.recipe.clean_recipe import PersonalKind

CODE_VERSION = 4
"""Increase when the same text would be masked in another way."""

_LOOK_BACK = 40
_LEAST_DISTINCT = 4
"""The second half of a key has as many different characters; of 10 random ones of 32, one in ten million has fewer."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of personal data."""

    name: PersonalKind
    hint: str
    """In RE2's syntax: every text with a hit matches it."""
    placeholders: tuple[bytes, ...]
    find: Callable[[bytes], Iterator[tuple[int, int]]]
    """Yields the places (start, stop) of the hits in a text, in order; they do not overlap."""


def _kind(
    name: PersonalKind,
    hint: str,
    pattern: bytes,
    placeholders: tuple[bytes, ...],
    accepts: Callable[[bytes, bytes], bool],
) -> Kind:
    """Return a kind whose hits are what a pattern of `re`, or its named group, finds and `accepts` takes.

    It is given the hit, and the `_LOOK_BACK` bytes before it.
    """
    compiled = re.compile(pattern)

    def find(data: bytes) -> Iterator[tuple[int, int]]:
        for match in compiled.finditer(data):
            start = match.start(match.lastgroup or 0)
            hit = match[match.lastgroup or 0].rstrip()
            if accepts(hit, data[max(0, start - _LOOK_BACK) : start]):
                yield start, start + len(hit)

    return Kind(name, hint, placeholders, find)


# E-mail addresses.

_RESERVED_DOMAINS = re.compile(
    rb"(?:.*\.)?(?:example\.(?:com|net|org)|example|internal|invalid|local|localdomain|localhost|test)"
)
"""Names for documentation and tests (RFC 2606, RFC 6761, RFC 6762)."""
_FILE_ENDINGS = frozenset(
    b"bmp css csv dll docx exe gif htm html ico jpeg jpg js json jsx less pdf png scss svg toml ts tsx txt webp xml "
    b"yaml yml".split()
)
"""Endings of names such as `logo@2x.png`. None is a top-level domain. An ending of mixed case is not one either:
`q@k.mT` multiplies."""

_ATTRIBUTES = frozenset(
    b"bias conj data det diag dtype flat grad imag inv ndim norm real shape size trace transpose values weight".split()
)
"""Attributes of arrays: `W@x.shape` multiplies matrices. None is a top-level domain."""
_SELF = b"self."
_LEAST_OF_NAME = 3
"""`name` is an attribute and a top-level domain: behind it, operands have one or two letters, and hosts more."""

_WIDE = rb"[\xC3-\xDF][\x80-\xBF]|(?:\xE0[\xA4-\xB7]|\xE1[\xB8-\xBF])[\x80-\xBF]"
"""A letter beyond ASCII (RFC 6531), or an accent of its own: U+00C0 to U+07FF, U+0900 to U+0DFF, U+1E00 to U+1FFF. Text
of other scripts, such as Chinese and Thai, stands next to an address without a space: they are boundaries."""
_NOT_BEHIND_WIDE = rb"(?<![\xC3-\xDF][\x80-\xBF])(?<!(?:\xE0[\xA4-\xB7]|\xE1[\xB8-\xBF])[\x80-\xBF])"
_LETTER, _ALNUM, _INNER, _NAME = (
    rb"(?:[%b]|%b)" % (own, _WIDE) for own in (b"A-Za-z", b"A-Za-z0-9", b"A-Za-z0-9-", b"\\w%+")
)

_LOCAL = re.compile(
    rb"(?<![A-Za-z0-9_%%+])%b%b(?:(?:[.-]|%b){0,62}(?:-|%b))?\Z" % (_NOT_BEHIND_WIDE, _NAME, _NAME, _NAME)
)
_MOST_LOCAL_BYTES = 64
_DOMAIN = re.compile(
    rb"@((?:%b(?:%b{0,61}%b)?\.){1,8}(?:xn--[A-Za-z0-9-]{2,58}[A-Za-z0-9]|%b{2,24}))(?![\w(@-]|%b|\.%b)"
    % (_ALNUM, _INNER, _ALNUM, _LETTER, _WIDE, _ALNUM)
)


def _find_emails(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the places of e-mail addresses, a kind of personal data: from each @ to both sides."""
    done = 0
    at = data.find(b"@")
    while at >= 0:
        domain = _DOMAIN.match(data, at)
        local = _LOCAL.search(data, max(done, at - _MOST_LOCAL_BYTES), at) if domain else None
        if domain and local and _is_email(local[0].lower(), domain[1]):
            done = domain.end()
            yield local.start(), done
        at = data.find(b"@", max(done, at + 1))


def _is_email(local: bytes, domain: bytes) -> bool:
    top = domain.rpartition(b".")[2]
    cased = top.decode()
    if local == b"git" or top.lower() in _FILE_ENDINGS or not (cased.islower() or cased.isupper() or cased.istitle()):
        return False
    if top.lower() in _ATTRIBUTES or (top.lower() == b"name" and _multiplies(local, domain)):
        return False
    return not _RESERVED_DOMAINS.fullmatch(domain.lower())


def _multiplies(local: bytes, domain: bytes) -> bool:
    """Return whether what looks like an e-mail under `.name` is a product of matrices, and an attribute of one."""
    host = domain.split(b".")[-2]
    return len(local) == 1 or len(host) < _LEAST_OF_NAME or local.startswith(_SELF) or domain.startswith(_SELF)


_EMAIL = Kind(
    "email",
    r"[A-Za-z0-9_%+\x{C0}-\x{DFF}\x{1E00}-\x{1FFF}-]@[A-Za-z0-9\x{C0}-\x{DFF}\x{1E00}-\x{1FFF}]",
    tuple(
        b"email@example.com firstname.lastname@example.org user@example.net contact@example.com "
        b"info@example.org name@example.net someone@example.com nobody@example.org".split()
    ),
    _find_emails,
)

# Addresses of the internet.

_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001:db8::/32",
        "3fff::/20",
    )
]
"""IANA's registry of special-purpose addresses of IPv4, and multicast; of IPv6, those of documentation: others are not
looked for. `is_global` differs between versions of Python."""
_FINEWEB = frozenset(b"22.214.171.124 126.96.36.199 220.127.116.11 184.108.40.206 188.8.131.52 18.104.22.168".split())
"""Addresses that FineWeb puts in place of real ones; no host answers them (datatrove, `PIIFormatter`)."""
_VERSION_BEFORE = re.compile(
    rb"(?i:\b(?:v|ver|art)|version[_s]*|release|build|section|article|paragraph|chapter|clause|rule|figure|table|appendix"
    rb"|annex|definition|theorem|lemma|proposition|corollary|remark|exercise|equation|\xc2\xa7)[s\s:=\"'.(]{0,5}\Z"
    rb"|[=<>~!^]=[ ]?\Z|(?:\A|[\s(\"';])[A-Z][A-Za-z]{0,30}/\Z"
)


def _is_public_v4(hit: bytes, before: bytes) -> bool:
    if max(map(len, hit.split(b"."))) == 1 or hit in _FINEWEB or _VERSION_BEFORE.search(before):
        return False
    return _is_public(hit.decode("ascii"))


def _is_public(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)  # refuses 256 and 01
    except ValueError:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


_IPV4 = _kind(
    "ipv4",
    r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]",
    rb"[0-9](?<![0-9A-Za-z_.][0-9])(?<![A-Za-z]-[0-9])[0-9]{0,2}(?:\.[0-9]{1,3}){3}"
    rb"(?![0-9A-Za-z_]|\.[0-9]|[+~][0-9A-Za-z]|-[A-Za-z])",
    tuple(f"192.0.2.{number}".encode() for number in (1, 17, 42, 64, 99, 128, 177, 200)),
    _is_public_v4,
)

_LEAST_V6_GROUPS = 3


def _is_public_v6(hit: bytes, _: bytes) -> bool:
    text = hit.decode("ascii")
    groups = sum(map(bool, text.split(":")))  # `2000::2` is a slice in Python
    return groups >= _LEAST_V6_GROUPS and _is_public(text)


_IPV6 = _kind(
    "ipv6",
    r"[23][0-9A-Fa-f]{3}::?[0-9A-Fa-f]{1,4}:",
    # The addresses in use today, 2000::/3: `abc::def` is C++.
    rb"[23](?<![0-9A-Za-z_:.][23])[0-9A-Fa-f]{3}(?:::?[0-9A-Fa-f]{1,4}){1,7}(?:::)?(?![0-9A-Za-z_]|:[0-9A-Fa-f:]|\.[0-9])",
    tuple(f"2001:db8::{number:x}".encode() for number in (0x1, 0x17, 0x2A, 0x64, 0x99, 0xABC, 0x1F0, 0xC0DE)),
    _is_public_v6,
)

# Keys and tokens.


def _is_random(hit: bytes, _: bytes) -> bool:
    """Return whether a secret key is real: its second half has the characters of a key, which `xxxx` has not."""
    return len(set(hit[len(hit) // 2 :])) >= _LEAST_DISTINCT


_BASE64_RUN = re.compile(rb"[A-Za-z0-9+/=]{40}")
_MOST_KEY_BYTES = 20_000


def _is_key_body(hit: bytes, _: bytes) -> bool:
    return len(hit) <= _MOST_KEY_BYTES and _BASE64_RUN.search(hit) is not None


def _is_aws_key(hit: bytes, before: bytes) -> bool:
    return _is_random(hit, before) and not hit.endswith((b"EXAMPLE", b"EXAMPLEKEY"))


def _fill(prefix: str, size: int) -> tuple[bytes, ...]:
    """Return placeholders of a kind of token: its fixed beginning, then one character over and over."""
    return tuple(f"{prefix}{character * size}".encode() for character in "x0")


_TOKENS: tuple[tuple[PersonalKind, str, str, tuple[bytes, ...]], ...] = (
    # The formats that the services document for scanners of secrets: kind, hint, pattern, placeholders. A hint without
    # a pattern is the pattern.
    ("github_token", "gh[pousr]_[A-Za-z0-9]{36}", "gh[pousr]_[A-Za-z0-9]{36,251}", _fill("ghp_", 36)),
    ("github_token", "github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}", "", _fill("github_pat_", 22)),
    # GitLab's newer tokens end with a version and a checksum, behind dots.
    (
        "gitlab_token",
        r"gl(?:pat|oas|dt|rtr?|cbt|ptt|ft|imt|agent|wt|soat|ffct)-[A-Za-z0-9_-]{20}",
        r"gl(?:pat|oas|dt|rtr?|cbt|ptt|ft|imt|agent|wt|soat|ffct)-[A-Za-z0-9_-]{20,300}"
        r"(?:(?:\.[0-9a-z]{2})?\.[0-9a-z]{9})?",
        _fill("glpat-", 20),
    ),
    ("google_key", "AIza[A-Za-z0-9_-]{35}", "", _fill("AIza", 35)),
    ("huggingface_token", "hf_[A-Za-z]{34}", "", _fill("hf_", 34)),
    ("openai_key", "T3BlbkFJ", "sk-[A-Za-z0-9_-]{20,100}T3BlbkFJ[A-Za-z0-9_-]{20,100}", _fill("sk-", 48)),
    ("anthropic_key", "sk-ant-", "sk-ant-[a-z]{3,8}[0-9]{2}-[A-Za-z0-9_-]{80,120}", _fill("sk-ant-", 95)),
    (
        "slack_token",
        r"xox[abeoprs]-|xapp-[0-9]-",
        r"xox[abeoprs]-[0-9]{8,16}-[A-Za-z0-9-]{10,200}|xapp-[0-9]-[A-Z0-9]{8,16}-[0-9]{8,16}-[A-Za-z0-9]{32,128}"
        r"|xoxe(?:\.xox[bp])?-[0-9]-[A-Za-z0-9-]{100,250}",
        _fill("xoxb-", 48),
    ),
    # Of an address at which anybody may post who knows its end, the end is the hit.
    (
        "slack_token",
        r"hooks\.slack\.com/services/T",
        r"hooks\.slack\.com/services/(?P<secret>T[A-Z0-9]{8,12}/B[A-Z0-9]{8,12}/[A-Za-z0-9]{20,32})",
        (b"T00000000/B00000000/" + b"X" * 24,),
    ),
    (
        "discord_webhook",
        r"discord(?:app)?\.com/api/webhooks/",
        r"discord(?:app)?\.com/api/webhooks/(?P<secret>[0-9]{17,20}/[A-Za-z0-9_-]{60,72})",
        (b"0" * 18 + b"/" + b"X" * 68,),
    ),
    ("stripe_key", "[sr]k_live_", "[sr]k_live_[A-Za-z0-9]{24,247}", _fill("sk_live_", 24)),
    ("npm_token", "npm_[A-Za-z0-9]{36}", "", _fill("npm_", 36)),
    ("pypi_token", "pypi-AgEIcHlwaS5vcmc", "pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,1000}", _fill("pypi-", 64)),
)
"""Tokens: a fixed beginning, then characters that no person chose."""

_KEYS = (
    _kind(
        "private_key",
        r"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----",
        # The hit is the text between the two lines, without the white space around it.
        rb"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----\s*+"
        rb"(?P<body>[^-]*+(?:-(?!----)[^-]*+)*+)"
        rb"-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----",
        (b"EXAMPLE", b"REDACTED"),
        _is_key_body,
    ),
    # AWS: Identity and Access Management, unique identifiers. Its examples end with EXAMPLE or EXAMPLEKEY.
    _kind(
        "aws_key",
        r"A[KSBC][IC]A[A-Z2-7]{16}",
        rb"A(?<![A-Za-z0-9_]A)(?:KIA|SIA|BIA|CCA)[A-Z2-7]{16}(?![A-Za-z0-9_])",
        (b"AKIAIOSFODNN7EXAMPLE",),
        _is_aws_key,
    ),
    _kind(
        "aws_key",
        r"(?i:secret_?access_?key|aws_?secret)",
        rb"(?i:secret_?access_?key|aws_?secret(?:_?key)?)(?:>\s{0,8}|[\"']?[ \t]{0,8}(?:=>|[:=])[ \t]{0,8}[\"']?)"
        rb"(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        (b"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",),
        _is_aws_key,
    ),
    *(
        _kind(
            name,
            hint,
            rf"(?<![A-Za-z0-9_-])(?:{pattern or hint})(?![A-Za-z0-9_-])".encode(),
            placeholders,
            _is_random,
        )
        for name, hint, pattern, placeholders in _TOKENS
    ),
)

GROUPS: tuple[tuple[Kind, ...], ...] = (_KEYS, (_EMAIL,), (_IPV4,), (_IPV6,))
"""Every kind, in the order in which they are looked for; a name may have several. Hints of a group are joined."""
