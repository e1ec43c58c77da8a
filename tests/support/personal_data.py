"""Made-up personal data and secrets of every kind, in the shapes that they have in real text."""

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.clean.personal_kinds import GROUPS, Kind
from pipeline.recipe.clean_recipe import PERSONAL_KINDS, PersonalKind

_DRAWN = {
    "#": string.digits,
    "%": string.ascii_letters,
    "*": string.ascii_letters + string.digits,
    "^": string.ascii_uppercase + "234567",
    "~": string.ascii_lowercase + string.digits,
}
"""The signs of a shape, and the characters of which each stands for any."""
_NUMBER = "1" + "#" * 11
_SHAPES: dict[PersonalKind, list[str]] = {
    "email": [
        "x_y+z###@%%%%%%%.museum",
        "o-k##@ö%%%%%%%.co.uk",
        "üA.B.C###@почта%%%%%%%.рф",
        "r2d2###@%%%%%%%.mail.fr",
    ],
    "ipv4": ["8#.1##.2#.3#", "9#.1##.23.1##"],
    "ipv6": ["2a00:1##a:2##b:3##c:4##d:5##e:6##f:1", "2606:1#a#::2###", "2a02:1##c:2d##::"],
    "private_key": [
        f"-----BEGIN {own}PRIVATE KEY-----\n|{chr(10).join(['*' * 64] * 12)}|\n-----END {own}PRIVATE KEY-----\n"
        for own in ("RSA ", "EC ", "")
    ],
    "aws_key": [
        "AKIA" + "^" * 16,
        *(f"{key}|{'*' * 40}|\n" for key in ("aws_secret_access_key = ", '"SecretAccessKey": "')),
    ],
    "github_token": ["ghp_" + "*" * 36, f"github_pat_{'*' * 22}_{'*' * 59}"],
    "gitlab_token": ["glpat-" + "*" * 20, f"glrt-{'*' * 27}.01.{'~' * 9}"],
    "google_key": ["AIza" + "*" * 35],
    "huggingface_token": ["hf_" + "%" * 34],
    "openai_key": [f"sk-{own}{'*' * 20}T3BlbkFJ{'*' * 20}" for own in ("", "proj-")],
    "anthropic_key": [f"sk-ant-api03-{'*' * 93}AA"],
    "slack_token": [
        f"xoxb-{_NUMBER}-{_NUMBER}-{'*' * 24}",
        f"xapp-1-A{'^' * 10}-{_NUMBER}-{'~' * 64}",
        "xoxe.xoxp-1-" + "*" * 163,
    ],
    "discord_webhook": [f"post to https://discord.com/api/webhooks/|1{'#' * 17}/{'*' * 68}|\n"],
    "stripe_key": ["sk_live_" + "*" * 24],
    "npm_token": ["npm_" + "*" * 36],
    "pypi_token": ["pypi-AgEIcHlwaS5vcmc" + "*" * 150],
}
"""By kind; where text must stand around it, with that text, divided by `|`."""
_AROUND = ["write to |.\n", "key = '|'\n", "<|>, ", "(|)", "世|界\n", "x=|;", "\n|\n"]


@dataclass(frozen=True)
class Planted:
    """A piece of text with one secret in it."""

    kind: PersonalKind
    text: str
    secret: str
    """The part of `text` that must go."""


def plant(number: int, seed: int = 0) -> list[Planted]:
    """Return so many pieces, every kind equally often."""
    rng = random.Random(seed)
    pieces: list[Planted] = []
    for index in range(number):
        kind = PERSONAL_KINDS[index % len(PERSONAL_KINDS)]
        shape = rng.choice(_SHAPES[kind])
        before, shape, after = (shape if "|" in shape else rng.choice(_AROUND).replace("|", f"|{shape}|")).split("|")
        secret = "".join(rng.choice(_DRAWN.get(sign, sign)) for sign in shape)
        pieces.append(Planted(kind, f"{before}{secret}{after}", secret))
    return pieces


def kinds_of(names: Sequence[PersonalKind]) -> tuple[Kind, ...]:
    """Return the kinds of personal data of these names, in the order of `GROUPS`."""
    return tuple(kind for group in GROUPS for kind in group if kind.name in names)
