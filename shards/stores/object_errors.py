"""The errors of object stores, as messages: which failure may pass, and what a person can do about the others.

Messages are written here and nowhere else. Nothing of a store's answer is repeated except its status and error code,
because answers quote keys of the account, and URLs may be signed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shards.stores.address import ObjectAddress
from shards.stores.object_client import Connection, say_variables
from shards.stores.retry import TRANSIENT_STATUSES, StoreError, TransientError

UNREACHABLE_S = 30.0
"""How long a store is tried that never answered this process: its endpoint is probably wrong."""

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*([A-Za-z][A-Za-z0-9.]{0,60})\s*</Code>")
_KIND = re.compile(r"\bkind: (Connect|Timeout|Interrupted|Request|Body|Decode|Unknown)\b")

# Of answers whose status alone does not say so.
_PASSING_CODES = frozenset(
    (
        "RequestTimeout",
        "Throttling",
        "ThrottlingException",
        "OperationAborted",
        "ConditionalRequestConflict",
        "BadDigest",
        "IncompleteBody",
        "XAmzContentSHA256Mismatch",
        "NoSuchUpload",  # the answer to the end of an upload was lost, and the end was requested again
    )
)
_WRONG_REGION_CODES = frozenset(
    ("PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
)
_REFUSED_KEYS_CODES = frozenset(
    (
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidToken",
        "ExpiredToken",
        "TokenRefreshRequired",
        "AuthenticationFailed",
        "InvalidAuthenticationInfo",
    )
)
_ABSENT_BUCKET_CODES = frozenset(("NoSuchBucket", "ContainerNotFound", "InvalidBucketName"))


class NoCredentialsError(StoreError):
    """This process has no credentials for a store that asks for them."""


@dataclass(frozen=True)
class Failure:
    """The facts of a failed request that a message may use."""

    status: int | None
    code: str
    kind: str
    text: str

    @property
    def shown(self) -> str:
        """How messages name the answer: `HTTP 403 AccessDenied`."""
        return " ".join(filter(None, (f"HTTP {self.status}" if self.status else "", self.code)))


def read_failure(error: Exception) -> Failure:
    """Return the facts of an error that obstore raised."""
    text = str(error)
    said, _, source = text.partition("Debug source")
    status, code, kind = _STATUS.search(said), _CODE.search(said), _KIND.search(source)
    return Failure(int(status[1]) if status else None, code[1] if code else "", kind[1] if kind else "", text)


def to_store_error(
    error: Exception, *, what: str, doing: str, address: ObjectAddress, at: Connection, answered: bool
) -> StoreError | OSError:
    """Return the error to raise for an error of obstore: `TransientError` if the failure may pass.

    Args:
        error: what obstore raised.
        what: the address of the file or folder that the message begins with.
        doing: `read`, `write`, `list` or `delete`.
        address: the store's address.
        at: the client, with its endpoint and region.
        answered: whether the store has answered this process before.
    """
    found = read_failure(error)
    passing = passing_error(found, what, at.endpoint, answered=answered)
    if passing is not None:
        return passing
    bucket, where = address.bucket, at.endpoint
    # What is not there.
    if found.code in _ABSENT_BUCKET_CODES:
        return StoreError(f"{what}: there is no bucket {bucket!r} at {where}. Create it, or correct the address.")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{what}: does not exist")
    # What the user's settings can mend: region, credentials, rights.
    if found.status in (301, 307, 308) or found.code in _WRONG_REGION_CODES or "BareRedirect" in found.text:
        message = f"the bucket is in another region than {at.region!r} ({found.shown})"
        return StoreError(f"{what}: {message}. Set AWS_REGION to its region.")
    if "169.254.169.254" in found.text or "metadata.google.internal" in found.text:
        return NoCredentialsError(
            f"{what}: no credentials in the environment, and no role of this machine. {say_variables(address.scheme)}"
        )
    if found.status == 401 or found.code in _REFUSED_KEYS_CODES:
        remedy = "They are wrong or have expired: renew them"
        return StoreError(f"{what}: {where} refuses the credentials ({found.shown}). {remedy}.")
    if found.status == 403:
        message = f"no permission to {doing} at {where} ({found.shown})"
        return StoreError(f"{what}: {message}. Ask for the right. {say_variables(address.scheme)}")
    # What the store cannot do, or is not.
    if found.status == 416:
        return OSError(f"{what}: ends before the bytes that were requested. Copy or build it again.")
    if "NotPartial" in found.text or "UnexpectedRange" in found.text:
        return StoreError(
            f"{what}: {where} answered a request for a range with other bytes: it does not read ranges. "
            "Use another store, or copy the set to a disk."
        )
    if found.status is not None:
        return StoreError(f"{what}: {where} answered {found.shown} to a request to {doing}. Is the endpoint right?")
    if found.kind:
        return StoreError(f"{what}: what listens at {where} is not an object store. Correct the endpoint.")
    return StoreError(f"{what}: cannot {doing}: {type(error).__name__}. {say_variables(address.scheme)}")


def passing_error(found: Failure, what: str, endpoint: str, *, answered: bool) -> TransientError | None:
    """Return the error if the failure may pass, else None."""
    if found.kind == "Connect":
        # An endpoint that has answered before is right, so it gets all the time.
        message = f"nothing answers at {endpoint} (is the endpoint right?)"
        return TransientError(f"{what}: {message}", give_up_s=None if answered else UNREACHABLE_S)
    if "169.254.169.254" in found.text:
        return None  # the address that tells a machine its role: there is none here, and never will be
    if found.status in TRANSIENT_STATUSES or found.code in _PASSING_CODES:
        return TransientError(f"{what}: {endpoint} answered {found.shown}")
    if found.status is None and found.kind in ("Timeout", "Interrupted", "Request", "Body", "Decode"):
        why = {"Timeout": "did not answer in time", "Request": "closed the connection"}
        return TransientError(f"{what}: {endpoint} {why.get(found.kind, 'broke off its answer')}")
    return None
