"""Clients of object stores, made in each process from its environment, and their errors as messages.

Credentials, region and endpoint come from the environment: AWS_*, GOOGLE_*, AZURE_*. They stay in this process: no
address, message, `repr` or pickle has them.

An error's message says whether the failure may pass, and what a person can do about it. Nothing of a store's answer is
repeated except its status and error code, because answers quote keys of the account, and URLs may be signed.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shards.errors import InputError
from shards.stores.retry import FIRST_PAUSE_S, GIVE_UP_S, TRANSIENT_STATUSES, StoreError, TransientError, note_reached

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store
    from obstore.store import ClientConfig, RetryConfig  # isort: skip

    Client = AzureStore | GCSStore | S3Store


CONNECT_S = 10
READ_S = 60
"""Seconds until a connection must be made, and until the next bytes of an answer must come."""

_PART_RETRIES: RetryConfig = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(seconds=FIRST_PAUSE_S), "max_backoff": timedelta(seconds=3), "base": 2},
}
"""How obstore retries one part of a large upload. Only obstore knows the parts: without this, one failure among
hundreds of parts would begin the file again. Every other request is attempted once by obstore, and retried by
`shards.stores.retry`, which counts, reports and bounds; so is a large upload as a whole."""

_NO_RETRIES: RetryConfig = {"max_retries": 0}

_SERVICES = {
    "s3": ("Amazon S3", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "AWS_ALLOW_HTTP"),
    "gs": ("Google Cloud Storage", ("GOOGLE_BASE_URL",), "GOOGLE_ALLOW_HTTP"),
    "az": ("Azure Blob Storage", ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"), "AZURE_ALLOW_HTTP"),
}
"""Of each service its name, and the variables of its endpoint and of plain HTTP. obstore reads most of them itself."""

_REMEDIES = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_REGION, AWS_ENDPOINT_URL); AWS_SKIP_SIGNATURE=true "
    "reads a public bucket.",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
}
"""Of each service the sentence that names the variables from which it takes its credentials."""

_VARIABLES = re.compile(r"(AWS|GOOGLE|AZURE)_\w+")
_REFUSED = re.compile(r"\bsource: (\w+)")
"""The name of what obstore finds wrong with its settings, such as `MissingSecretAccessKey`."""


@dataclass(frozen=True)
class Connection:
    """The clients of one bucket in this process, and the facts about them that messages may state."""

    endpoint: str
    region: str
    single: Client = field(repr=False)
    """Attempts each request once."""
    parts: Client = field(repr=False)
    """Retries the parts of a large upload."""


def connect(scheme: str, bucket: str) -> Connection:
    """Return this process's clients of a bucket, made at the first call and whenever the environment has changed.

    Nothing is sent yet.

    Raises:
        InputError: the environment cannot be used, such as an endpoint without TLS on another machine.
        RuntimeError: this process was forked from one that used an object store: obstore would wait without end.
    """
    if _forked:
        raise RuntimeError(
            "forked from a process that used an object store. Start processes by spawn or forkserver; a DataLoader's "
            "with multiprocessing_context='forkserver'."
        )
    variables = frozenset((name, value) for name, value in os.environ.items() if _VARIABLES.fullmatch(name))
    return _connect(scheme, bucket, variables)


_forked = False


def _note_fork() -> None:
    global _forked
    _forked = _connect.cache_info().currsize > 0


@functools.lru_cache(maxsize=16)
def _connect(scheme: str, bucket: str, variables: frozenset[tuple[str, str]]) -> Connection:
    from obstore import exceptions, store  # the package first: threads that begin with its parts may wait in a circle

    environment = dict(variables)
    service, endpoints, allow_http = _SERVICES[scheme]
    endpoint = next((environment[name] for name in endpoints if environment.get(name)), "")
    options = _client_options(endpoint, environment.get(allow_http, ""), allow_http)
    region, config = "", dict[str, Any]()
    if scheme == "s3":
        # The settings that obstore does not take from the environment as we mean them.
        if environment.get("AWS_PROFILE") and "AWS_ACCESS_KEY_ID" not in environment:
            remedy = 'Put its keys into the environment: eval "$(aws configure export-credentials --format env)"'
            raise InputError(f"AWS_PROFILE: the files of the AWS command line are not read. {remedy}")
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        config["region"] = region
        if endpoint:
            config["endpoint"] = endpoint
        # obstore reads the two switches below itself, and refuses an empty one.
        if not environment.get("AWS_SKIP_SIGNATURE"):
            config["skip_signature"] = False
        if not environment.get("AWS_UNSIGNED_PAYLOAD"):
            # Where the content cannot be changed on the way: to sign it, too, takes half the processor time of sending
            # it.
            config["unsigned_payload"] = not options.get("allow_http") or _is_loopback(endpoint)
        service = f"{service} in {region}"
    kind = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
    try:
        single, parts = (
            kind(bucket, client_options=options, retry_config=retries, **config)
            for retries in (_NO_RETRIES, _PART_RETRIES)
        )
    except exceptions.BaseError as error:  # its text may quote an account's key; the name of its kind does not
        refused = _REFUSED.search(str(error))
        found = f" ({refused[1]})" if refused else ""
        raise InputError(
            f"{scheme}://{bucket}: the settings in the environment cannot be used{found}. {_REMEDIES[scheme]}"
        ) from None
    return Connection(_shown(endpoint) or service, region, single, parts)


os.register_at_fork(after_in_child=_note_fork)


def _client_options(endpoint: str, allowed: str, variable: str) -> ClientConfig:
    """Return an object store client's time limits, and whether plain HTTP is allowed: here, or if the user says so.

    Over plain HTTP anyone on the way reads the corpus and can change it.
    """
    shown, plain = _shown(endpoint), endpoint.startswith("http://")
    if plain and not _is_loopback(endpoint) and allowed.lower() not in ("1", "true", "yes"):
        raise InputError(
            f"endpoint {shown}: is plain HTTP to another machine: anyone on the way can read and change what is sent. "
            f"Use https://, or set {variable}=true to accept it."
        )
    return {
        "allow_http": plain,
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=READ_S),
        "timeout": timedelta(seconds=GIVE_UP_S),
        "user_agent": "tokenmill",
    }


def _is_loopback(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(endpoint: str) -> str:
    """Return the endpoint of an object store's client as messages name it: without user's name, password or query."""
    if not endpoint:
        return ""
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("the endpoint is not an address like https://HOST:PORT. Correct it.")
    return f"{parts.scheme}://{parts.hostname}{f':{port}' if port else ''}"


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
        """How messages name the answer of an object store to its client: `HTTP 403 AccessDenied`."""
        return " ".join(filter(None, (f"HTTP {self.status}" if self.status else "", self.code)))


def read_failure(error: Exception) -> Failure:
    """Return the facts of an error that a client of obstore raised."""
    text = str(error)
    said, _, source = text.partition("Debug source")
    status, code, kind = _STATUS.search(said), _CODE.search(said), _KIND.search(source)
    return Failure(int(status[1]) if status else None, code[1] if code else "", kind[1] if kind else "", text)


def to_store_error(
    error: Exception, *, what: str, doing: str, scheme: str, bucket: str, at: Connection
) -> StoreError | OSError:
    """Return the error to raise for one of a client of obstore: `TransientError` if the failure may pass.

    Args:
        error: what obstore raised.
        what: the address of the file or folder that the message begins with.
        doing: `read`, `write`, `list` or `delete`.
        scheme: the kind of store.
        bucket: its bucket.
        at: the client, with its endpoint and region.
    """
    found = read_failure(error)
    if (passing := passing_error(found, what, at.endpoint)) is not None:
        return passing
    kind, where, remedy = StoreError, at.endpoint, _REMEDIES[scheme]
    # What is not there.
    if found.code in _ABSENT_BUCKET_CODES:
        told = f"there is no bucket {bucket!r} at {where}. Create it, or correct the address."
    elif isinstance(error, FileNotFoundError):
        kind, told = FileNotFoundError, "does not exist"
    # What the user's settings can mend: region, credentials, rights.
    elif found.status in (301, 307, 308) or found.code in _WRONG_REGION_CODES or "BareRedirect" in found.text:
        told = f"the bucket is in another region than {at.region!r} ({found.shown}). Set AWS_REGION to its region."
    elif "169.254.169.254" in found.text or "metadata.google.internal" in found.text:
        kind, told = NoCredentialsError, f"no credentials in the environment, and no role of this machine. {remedy}"
    elif found.status == 401 or found.code in _REFUSED_KEYS_CODES:
        told = f"{where} refuses the credentials ({found.shown}). They are wrong or have expired: renew them."
    elif found.status == 403:
        told = f"no permission to {doing} at {where} ({found.shown}). Ask for the right. {remedy}"
    # What the store cannot do, or is not.
    elif found.status == 416:
        kind, told = OSError, "ends before the bytes that were requested. Copy or build it again."
    elif "NotPartial" in found.text or "UnexpectedRange" in found.text:
        told = (
            f"{where} answered a request for a range with other bytes: it does not read ranges. Use another store, or "
            "copy the set to a disk."
        )
    elif found.status is not None:
        told = f"{where} answered {found.shown} to a request to {doing}. Is the endpoint right?"
    elif found.kind:
        told = f"what listens at {where} is not an object store. Correct the endpoint."
    else:
        told = f"cannot {doing}: {type(error).__name__}. {remedy}"
    return kind(f"{what}: {told}")


def passing_error(found: Failure, what: str, endpoint: str) -> TransientError | None:
    """Return the error of an object store's client if the failure may pass, else None."""
    if found.kind == "Connect":
        return TransientError(
            f"{what}: nothing answers at {endpoint} (is the endpoint right? HTTPS_PROXY names a proxy)",
            no_connection_to=endpoint,
        )
    if found.status is not None:
        note_reached(endpoint)
    if "169.254.169.254" in found.text:
        return None  # the address that tells a machine its role: there is none here, and never will be
    if found.status in TRANSIENT_STATUSES or found.code in _PASSING_CODES:
        return TransientError(f"{what}: {endpoint} answered {found.shown}")
    if found.status is None and found.kind in ("Timeout", "Interrupted", "Request", "Body", "Decode"):
        why = {"Timeout": "did not answer in time", "Request": "closed the connection"}
        return TransientError(f"{what}: {endpoint} {why.get(found.kind, 'broke off its answer')}")
    return None
