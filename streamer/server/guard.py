"""Middleware that checks requests: their form, their client, and their token."""

import asyncio
import dataclasses
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from streamer.server import tokens
from streamer.server.access import client_address, shown_token
from streamer.server.context import Context
from streamer.server.limits import Refusal
from streamer.server.responses import respond_error

MAX_HEAD_BYTES = 16 * 1024  # of a request's target and headers

# X-Forwarded-Proto of a proxy -> the scheme of the page that a browser shows.
_SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}

# Reasons of refusals that pages of other sites cause, and must not read.
_FOREIGN = ("host", "origin")


@dataclasses.dataclass(frozen=True, slots=True)
class Guard:
    """Refuses malformed and foreign requests; for those of a proxy it finds the client's address."""

    app: ASGIApp
    context: Context
    max_body_bytes: Callable[[Scope], tuple[int, str]]  # and the setting that says so, in brackets, if any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on with its client's address in `scope`."""
        headers = Headers(scope=scope)
        proxies = self.context.access.proxies
        peer = scope["client"][0] if scope.get("client") else ""
        proxied = proxies.trust(peer)
        address = client_address(peer, _only(headers, "x-forwarded-for"), proxies)
        scope["client"] = (address, scope["client"][1] if not proxied and scope.get("client") else 0)
        refusal = self._refusal(scope, headers, proxied=proxied)
        if refusal is None and proxied:
            refusal = self.context.limits.enter_address(address)
        if refusal is not None:
            self.context.metrics.refused(refusal.reason)
            answer: ASGIApp = respond_refusal(refusal, scope["path"])
            await (answer if refusal.reason in _FOREIGN else Cors(answer))(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        finally:
            if proxied:
                self.context.limits.leave_address(address)

    def _refusal(self, scope: Scope, headers: Headers, *, proxied: bool) -> Refusal | None:
        n_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        n_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
        if n_bytes > MAX_HEAD_BYTES:
            text = f"the head of the request has {n_bytes} bytes: expected at most {MAX_HEAD_BYTES}"
            return Refusal(431, text, "head")
        forwarded = _last(headers, "x-forwarded-host") if proxied else ""
        scheme = _last(headers, "x-forwarded-proto") if proxied else ""
        access = self.context.access
        if scope["server"] is not None and scope["server"][1] is None:  # a Unix socket is as near as loopback
            access = dataclasses.replace(access, host="localhost")
        refusal = access.check_peer(
            _only(headers, "host"),
            _only(headers, "origin"),
            forwarded_host=forwarded or None,
            scheme=_SCHEMES.get(scheme.lower()) or ("https" if scope["scheme"] in ("https", "wss") else None),
        )
        if refusal is not None:
            return refusal
        if "content-length" in headers and "transfer-encoding" in headers:
            # An intermediary may have used the other one, and so have seen another request (RFC 9112, 6.3).
            text = "the request has a Content-Length and a Transfer-Encoding: expected one of them"
            return Refusal(400, text, "http", {"Connection": "close"})
        length = headers.get("content-length", "0")
        most, setting = self.max_body_bytes(scope)
        if len(length) > 15 or int(length) > most:
            return Refusal(413, f"the body has {length:.20} bytes: expected at most {most}{setting}", "body")
        return None


class Cors(CORSMiddleware):
    """Lets pages of other origins read answers; `Guard` has refused all origins but those of `server.origins`.

    Cookies are not used: a page sends its token in a header, which the answer to its preflight request allows.
    """

    def __init__(self, app: ASGIApp) -> None:
        methods = ("GET", "HEAD", "POST", "DELETE")
        expose = ("Retry-After", "WWW-Authenticate")
        super().__init__(app, (), methods, ("*",), allow_private_network=True, expose_headers=expose)

    def is_allowed_origin(self, origin: str) -> bool:
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class RequireToken:
    """Refuses requests without a token of a scope, if tokens are required; or only checks whether they have one."""

    app: ASGIApp
    needs: tokens.Scope
    context: Context
    required: bool = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on with its token, if any, as `caller` in its state."""
        connection = HTTPConnection(scope)
        shown = shown_token(
            connection.headers.getlist("authorization"),
            scope.get("subprotocols", ()),
            connection.query_params.getlist("token"),
        )
        access, headers = self.context.access, connection.headers
        caller = access.check_site(headers.get("origin"), headers.get("sec-fetch-site")) or access.check_token(
            shown, self.needs, scope["client"][0], time.time()
        )
        if not isinstance(caller, Refusal):
            scope.setdefault("state", {})["caller"] = caller
        else:
            await asyncio.sleep(caller.delay_s)
            if self.required:
                self.context.metrics.refused(caller.reason)
                await respond_refusal(caller, scope["path"])(scope, receive, send)
                return
        await self.app(scope, receive, send)


def respond_refusal(refusal: Refusal, path: str) -> Response:
    """Return the response that says why a request is refused."""
    return respond_error(refusal.status, refusal.message, refusal.headers, path=path)


def _only(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    return ", ".join(values) if values else None  # two of them match nothing


def _last(headers: Headers, name: str) -> str:
    """Return the last value of a header: of several proxies the last one is trusted."""
    return (_only(headers, name) or "").rpartition(",")[2].strip()
