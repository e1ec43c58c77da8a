"""Made-up personal data and secrets of every kind, in the shapes that they have in real text."""

from __future__ import annotations

import base64
import random
import string
from dataclasses import dataclass

from pipeline.recipe.clean_recipe import PERSONAL_KINDS, PersonalKind

_ALNUM = string.ascii_letters + string.digits
_BASE36 = string.ascii_lowercase + string.digits
_BASE32 = string.ascii_uppercase + "234567"


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
    return [_make(PERSONAL_KINDS[index % len(PERSONAL_KINDS)], rng) for index in range(number)]


def _make(kind: PersonalKind, rng: random.Random) -> Planted:
    secret = _secret(kind, rng)
    if kind == "private_key":
        begin, end = (
            f"-----{word} {rng.choice(['RSA ', 'EC ', 'OPENSSH ', ''])}PRIVATE KEY-----" for word in ("BEGIN", "END")
        )
        return Planted(kind, f"{begin}\n{secret}\n{end}\n", secret)
    if kind == "aws_key" and len(secret) == 40:
        key = rng.choice(["aws_secret_access_key = ", '"SecretAccessKey": "', "AWS_SECRET_ACCESS_KEY="])
        return Planted(kind, f"{key}{secret}\n", secret)
    if kind == "discord_webhook":
        return Planted(kind, f"post to https://discord.com/api/webhooks/{secret}\n", secret)
    before, after = rng.choice(
        [("write to ", ".\n"), ("key = '", "'\n"), ("<", ">, "), ("(", ")"), ("世", "界\n"), ("x=", ";"), ("\n", "\n")]
    )
    return Planted(kind, f"{before}{secret}{after}", secret)


def _secret(kind: PersonalKind, rng: random.Random) -> str:
    match kind:
        case "email":
            name = rng.choice(["jo", "mary.jones", "x_y+z", "o-k", "A.B.C", "r2d2"])
            host, ending = rng.choice(["", "ö", "почта"]), rng.choice(["com", "co.uk", "museum", "de", "mail.fr", "рф"])
            return f"{rng.choice(['', 'ü'])}{name}{rng.randrange(1000)}@{host}{_letters(rng, 7)}.{ending}"
        case "ipv4":
            return f"{rng.randrange(11, 99)}.{rng.randrange(128)}.{rng.randrange(256)}.{rng.randrange(256)}"
        case "ipv6":
            groups = [f"{rng.randrange(1, 1 << 16):x}" for _ in range(6)]
            return rng.choice(
                [f"2a00:{':'.join(groups)}:1", f"2606:{groups[0]}::{groups[1]}", f"2a02:{groups[0]}:{groups[1]}::"]
            )
        case "private_key":
            lines = base64.b64encode(rng.randbytes(600)).decode()
            return "\n".join(lines[start : start + 64] for start in range(0, len(lines), 64))
        case "aws_key":
            return rng.choice([f"AKIA{_pick(rng, _BASE32, 16)}", _pick(rng, _ALNUM + "/+", 40)])
        case "github_token":
            return rng.choice(
                [f"ghp_{_pick(rng, _ALNUM, 36)}", f"github_pat_{_pick(rng, _ALNUM, 22)}_{_pick(rng, _ALNUM, 59)}"]
            )
        case "gitlab_token":
            token = f"{rng.choice(['glpat', 'gldt', 'glrt'])}-{_pick(rng, _ALNUM, 20)}"
            return rng.choice([token, f"{token}{_pick(rng, _ALNUM, 7)}.01.{_pick(rng, _BASE36, 9)}"])
        case "google_key":
            return f"AIza{_pick(rng, _ALNUM, 35)}"
        case "huggingface_token":
            return f"hf_{_pick(rng, string.ascii_letters, 34)}"
        case "openai_key":
            return f"sk-{rng.choice(['', 'proj-'])}{_pick(rng, _ALNUM, 20)}T3BlbkFJ{_pick(rng, _ALNUM, 20)}"
        case "anthropic_key":
            return f"sk-ant-api03-{_pick(rng, _ALNUM, 93)}AA"
        case "slack_token":
            first, second = (rng.randrange(10**11, 10**12) for _ in range(2))
            app = _pick(rng, _BASE32, 10)
            return rng.choice(
                [
                    f"xoxb-{first}-{second}-{_pick(rng, _ALNUM, 24)}",
                    f"xapp-1-A{app}-{first}-{_pick(rng, _BASE36, 64)}",
                    f"xoxe.xoxp-1-{_pick(rng, _ALNUM, 163)}",
                ]
            )
        case "discord_webhook":
            return f"{rng.randrange(10**17, 10**18)}/{_pick(rng, _ALNUM, 68)}"
        case "stripe_key":
            return f"sk_live_{_pick(rng, _ALNUM, 24)}"
        case "npm_token":
            return f"npm_{_pick(rng, _ALNUM, 36)}"
        case "pypi_token":
            return f"pypi-AgEIcHlwaS5vcmc{_pick(rng, _ALNUM, 150)}"


def _pick(rng: random.Random, characters: str, count: int) -> str:
    return "".join(rng.choices(characters, k=count))


def _letters(rng: random.Random, count: int) -> str:
    return _pick(rng, string.ascii_lowercase, count)
