"""Software Heritage's bucket on loopback: `/content/<sha1>`, and path-style `/softwareheritage/content/<sha1>`.

A body is the gzip of the bytes whose SHA-1 is the key, without a Content-Encoding, as the real one sends it; a missing
key is 404 with S3's XML. ETags are stable but not the MD5 that S3 would send; nothing can be listed or written.
"""

import gzip
import hashlib
import re
from collections.abc import Mapping

from tests.support.servers.http11 import Request, Response
from tests.support.servers.loopback import Server

KEY = re.compile(r"(?:/softwareheritage)?/content/([^/]+)$")


class Bucket(Server):
    """Serves objects; see the module's first lines. `url` is the endpoint, below which the keys are."""

    def __init__(self, objects: Mapping[str, bytes] | None = None) -> None:
        """Listen; the objects are bodies by their keys."""
        self.objects = dict(objects or {})
        super().__init__(self._route)
        (self.url,) = self.urls()

    def put(self, content: bytes) -> str:
        """Store the gzip of the content under its SHA-1; return the key."""
        key = hashlib.sha1(content).hexdigest()
        self.objects[key] = gzip.compress(content, compresslevel=6, mtime=0)
        return key

    def remove(self, key: str) -> None:
        """Make a key missing, as some are in the real bucket."""
        del self.objects[key]

    def _route(self, request: Request) -> Response:
        asked = KEY.match(request.path)
        if asked is None or request.method not in ("GET", "HEAD"):
            return refusal(403, "AccessDenied")
        key = asked.group(1)
        body = self.objects.get(key)
        if body is None:
            return refusal(404, "NoSuchKey")
        headers = {"Accept-Ranges": "bytes", "ETag": f'"{key[:32]}"'}
        return Response(200, headers, body)


def refusal(status: int, code: str) -> Response:
    """Return an error as S3 writes it."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code></Error>'.encode()
    return Response(status, {"Content-Type": "application/xml"}, body)
