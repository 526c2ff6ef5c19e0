"""A server on loopback that answers the routes of the Hugging Face hub that a download uses."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_API = re.compile(r"/api/(models|datasets)/([\w.-]+/[\w.-]+)(/auth-check|/revision/(.+))?")
_FILE = re.compile(r"(/datasets)?/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """Files at each commit, what branches and tags point to, and who may read them."""

    commits: dict[str, dict[str, bytes]]
    revisions: dict[str, str]
    licence: str = "apache-2.0"
    gated: bool = False


@dataclass
class Request:
    method: str
    path: str
    authorization: str | None


@dataclass
class FakeHub:
    """`repositories` by (kind, name); `token` opens the gated ones; `cut`: bytes after which a file breaks off."""

    endpoint: str = ""
    token: str = "hf_of_someone_with_access"  # noqa: S105 - opens nothing real
    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    listed: dict[str, int] = field(
        default_factory=dict
    )  # sizes that the listing gives, where they are not the real ones
    requests: list[Request] = field(default_factory=list)

    def downloads(self) -> list[Request]:
        """Requests for the content of files."""
        return [r for r in self.requests if r.method == "GET" and "/resolve/" in r.path]


@contextmanager
def serve() -> Iterator[FakeHub]:
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub, "broken": set()}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    broken: set[str]  # files that were cut once: refused while they are in `cut`

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def log_message(self, *_):
        """Say nothing."""

    def _answer(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(Request(self.command, path, self.headers.get("Authorization")))
        if match := _API.fullmatch(path):
            kind, name, action, revision = match.groups()
            self._api(kind, name, action, revision)
        elif match := _FILE.fullmatch(path):
            kind, name, revision, file = match.groups()
            self._file("datasets" if kind else "models", name, revision, file)
        else:
            self._error(404, "EntryNotFound")

    def _repository(self, kind, name):
        repository = self.hub.repositories.get((kind, name))
        if repository is None:
            self._error(401, "RepoNotFound")
        return repository

    def _may_read(self, repository):
        if not repository.gated or self.headers.get("Authorization") == f"Bearer {self.hub.token}":
            return True
        self._error(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        return False

    def _commit(self, repository, revision):
        commit = repository.revisions.get(revision, revision)
        if commit not in repository.commits:
            self._error(404, "RevisionNotFound")
            return None
        return commit

    def _api(self, kind, name, action, revision):
        repository = self._repository(kind, name)
        if repository is None:
            return
        if action == "/auth-check":
            if self._may_read(repository):
                self._send(200, b"{}")
            return
        commit = self._commit(repository, revision or "main")
        if commit is None:
            return
        info = {
            "id": name,
            "sha": commit,
            "gated": "manual" if repository.gated else False,
            "private": False,
            "tags": ["safetensors", f"license:{repository.licence}"],
            "siblings": [
                {"rfilename": f, "size": self.hub.listed.get(f, len(data))}
                for f, data in repository.commits[commit].items()
            ],
        }
        self._send(200, json.dumps(info).encode())

    def _file(self, kind, name, revision, file):
        repository = self._repository(kind, name)
        if repository is None or not self._may_read(repository):
            return
        commit = self._commit(repository, revision)
        if commit is None:
            return
        data = repository.commits[commit].get(file)
        if data is None:
            self._error(404, "EntryNotFound")
            return
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        if self.command == "GET" and file in self.hub.cut:
            self._cut_short(file, data, headers)
            return
        self._send(200, data, headers)

    def _cut_short(self, file, data, headers):
        if file in self.broken:
            self._error(403, "Forbidden")
            return
        self.broken.add(file)
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data[: self.hub.cut[file]])
        self.close_connection = True

    def _send(self, status, body, headers=None):
        self.send_response(status)
        for key, value in {
            "Content-Type": "application/json",
            **(headers or {}),
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status, code):
        self._send(status, b"{}", {"X-Error-Code": code})
