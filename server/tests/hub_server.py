"""A hub on loopback for tests: speaks the part of the hub's protocol that a download uses.

Repositories are dictionaries. Large files are answered with a redirect to a second address, as the hub does
with its content network. Every request is recorded. Faults are switched on by the test.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repo:
    files: dict[str, bytes]
    commit: str = "a" * 40
    branches: tuple[str, ...] = ("main",)
    token: str | None = None
    """Files are given only to who shows it; the listing to everybody, as with gated repositories."""
    sizes: dict[str, int] = field(default_factory=dict)
    """What the listing says of a file's size, where that is not the truth."""
    pipeline_tag: str | None = None
    names_content: bool = True
    """Whether the listing says what the cache calls a file's content. Not everybody who speaks the protocol does."""
    xet: bool = False
    """Whether large files are said to be kept in chunks. Nobody gives them here."""
    before: Repo | None = None
    """An earlier commit, which is to be had by its name."""

    def at(self, revision: str) -> Repo | None:
        if revision in (*self.branches, self.commit):
            return self
        return self.before if self.before is not None and self.before.commit == revision else None


@dataclass
class Fault:
    """The next requests of this method with this part in their path, once some have passed, are answered with a status."""

    method: str
    part: str
    status: int
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    """How many are answered as usual first."""


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    authorization: str | None
    range: str | None


class Hub:
    """`with Hub({"owner/name": Repo(...)}) as hub:` serves at `hub.url` and `hub.content_url`."""

    def __init__(self, repos: dict[str, Repo]) -> None:
        self.repos = repos
        self.seen: list[Seen] = []
        self.cut_after: int | None = None
        """The next content answers break off after this many bytes of their body."""
        self.cuts = 0
        """How often that is still to happen."""
        self.hold: threading.Event | None = None
        """When set, an answer that is cut stays open until this event instead of closing."""
        self.holding = threading.Event()
        self.status: int | None = None
        """Answer everything with this status."""
        self.page: bytes | None = None
        """Answer everything with 200 and this, as a captive portal does."""
        self.faults: list[Fault] = []
        self._fault = threading.Lock()
        self.push: tuple[str, str, Repo] | None = None
        """Once a path that ends like this has been asked for, the repository of this name is this."""
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler()) for _ in range(2)]
        self.url, self.content_url = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def __enter__(self) -> Hub:
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.hold is not None:
            self.hold.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def bodies(self) -> list[str]:
        """Names of the files whose content was sent, in order."""
        return [
            seen.path.rsplit("/", 1)[-1]
            for seen in self.seen
            if seen.method == "GET" and "/api/" not in seen.path
        ]

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                hub._answer(self)

            def do_GET(self) -> None:
                hub._answer(self)

        return Handler

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        headers = request.headers
        if self.push is not None and any(seen.path.endswith(self.push[0]) for seen in self.seen):
            self.repos[self.push[1]], self.push = self.push[2], None
        self.seen.append(Seen(request.command, path, headers.get("Authorization"), headers.get("Range")))
        if self.status is not None:
            return self._send(request, self.status, b"{}")
        if self.page is not None:
            return self._send(request, 200, self.page)
        fault = self._take_fault(request.command, path)
        if fault is not None:
            return self._send(request, fault.status, b"{}", fault.headers)
        words = path.strip("/").split("/")
        if words[0] == "content":
            return self._content(request, "/".join(words[1:3]), "/".join(words[3:]))
        if words[:2] == ["api", "models"] and len(words) >= 4:
            return self._listing(request, "/".join(words[2:4]), words[4:])
        if len(words) >= 5 and words[2] == "resolve":
            return self._resolve(request, "/".join(words[:2]), words[3], "/".join(words[4:]))
        return self._send(request, 404, b"{}")

    def _take_fault(self, method: str, path: str) -> Fault | None:
        with self._fault:
            for fault in self.faults:
                if fault.times and fault.method == method and fault.part in path:
                    if fault.passed:
                        fault.passed -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None

    def _listing(self, request: BaseHTTPRequestHandler, name: str, rest: list[str]) -> None:
        repo = self.repos.get(name)
        if repo is None:
            return self._error(request, 401, "RepoNotFound")
        repo = repo.at(rest[1] if len(rest) > 1 else "main")
        if repo is None:
            return self._error(request, 404, "RevisionNotFound")
        sizes = {file: repo.sizes.get(file, len(content)) for file, content in repo.files.items()}
        if rest and rest[0] == "tree":
            entries = [
                {"type": "file", "path": file, "size": size, "oid": etag(repo.files[file])}
                for file, size in sizes.items()
            ]
            return self._send(request, 200, json.dumps(entries).encode())
        siblings: list[dict[str, Any]] = [{"rfilename": file, "size": size} for file, size in sizes.items()]
        for sibling in siblings if repo.names_content else []:
            sibling["blobId"] = named = etag(repo.files[sibling["rfilename"]])
            if sibling["rfilename"].endswith(".safetensors"):
                sibling |= {
                    "blobId": "0" * 40,
                    "lfs": {"sha256": named, "size": sibling["size"], "pointerSize": 1},
                }
        info = {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings, "tags": []}
        if repo.pipeline_tag is not None:
            info["pipeline_tag"] = repo.pipeline_tag
        return self._send(request, 200, json.dumps(info).encode())

    def _resolve(self, request: BaseHTTPRequestHandler, name: str, revision: str, file: str) -> None:
        repo = self.repos.get(name)
        if repo is None:
            return self._error(request, 401, "RepoNotFound")
        repo = repo.at(revision)
        if repo is None:
            return self._error(request, 404, "RevisionNotFound")
        if repo.token is not None and request.headers.get("Authorization") != f"Bearer {repo.token}":
            return self._error(request, 401, "GatedRepo")
        content = repo.files.get(file)
        if content is None:
            return self._error(request, 404, "EntryNotFound")
        known = {"X-Repo-Commit": repo.commit, "ETag": f'"{etag(content)}"', "Accept-Ranges": "bytes"}
        if file.endswith(".safetensors"):
            known |= {
                "X-Linked-Etag": f'"{etag(content)}"',
                "X-Linked-Size": str(len(content)),
                "Location": f"{self.content_url}/content/{name}/{file}",
            }
            if repo.xet:
                known |= {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": f"{self.url}/refresh"}
            return self._send(request, 302, b"", known)
        return self._send(request, 200, content, known)

    def _content(self, request: BaseHTTPRequestHandler, name: str, file: str) -> None:
        content = self.repos[name].files[file]
        begin, end = 0, len(content)
        wanted = request.headers.get("Range")
        headers = {"ETag": f'"{etag(content)}"', "Accept-Ranges": "bytes"}
        if wanted is not None:
            first, last = wanted.removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last) + 1, end) if last else end
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        cut = None
        if request.command == "GET" and self.cuts > 0:
            self.cuts -= 1
            cut = self.cut_after
        self._send(request, 200 if wanted is None else 206, content[begin:end], headers, cut)

    def _error(self, request: BaseHTTPRequestHandler, status: int, code: str) -> None:
        self._send(request, status, b'{"error": "no"}', {"X-Error-Code": code, "X-Error-Message": code})

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        request.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            request.send_header(key, value)
        request.end_headers()
        if request.command == "HEAD":
            return
        request.wfile.write(body[:cut])
        if cut is not None:
            request.wfile.flush()
            self.holding.set()
            if self.hold is not None:
                self.hold.wait(60)
            request.close_connection = True


def etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
