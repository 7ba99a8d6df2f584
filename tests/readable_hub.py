"""Repositories of a Hub on the loopback interface: the requests with which `datasets` and `huggingface_hub` read them."""

from __future__ import annotations

import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler

from tests.loopback import LoopbackServer


REPOSITORY = r"/(?:api/)?(?:models/)?((?:datasets/)?[^/]+/[^/]+)"
COMMIT_OF_MAIN = "0123456789" * 4


def commit_of(revision: str) -> str:
    return COMMIT_OF_MAIN if revision == "main" else revision


class ReadableHub(LoopbackServer):
    """Serves files by repository and revision; anything else is not found, with the answers of the real Hub.

    Args:
        files: (repository, revision) to {path: content}; the repositories of datasets begin with "datasets/".

    Attributes:
        not_found: paths of the requests that had no answer.
    """

    def __init__(self, files: dict[tuple[str, str], dict[str, bytes]]):
        self.files = files
        self.not_found: list[str] = []

    def entry(self, repo: str, revision: str, path: str) -> dict | None:
        """What the Hub's API says about a file or a folder."""
        files = self.files[repo, revision]
        if path in files:
            return {
                "type": "file",
                "path": path,
                "size": len(files[path]),
                "oid": hashlib.sha1(files[path]).hexdigest(),
            }
        is_folder = any(name.startswith(f"{path}/") for name in files)
        return {"type": "directory", "path": path, "size": 0, "oid": "0" * 40} if is_folder else None

    def tree(self, repo: str, revision: str, folder: str, recursive: bool) -> list[dict]:
        """The entries of a folder, or of everything below it."""
        prefix = f"{folder}/" if folder else ""
        found = {}
        for name in self.files[repo, revision]:
            parts = name.removeprefix(prefix).split("/")
            if name.startswith(prefix):
                for depth in range(1, len(parts) + 1 if recursive else 2):
                    path = prefix + "/".join(parts[:depth])
                    found[path] = self.entry(repo, revision, path)
        return list(found.values())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ReadableHub

    def do_GET(self) -> None:
        hub = self.hub
        path, _, query = self.path.partition("?")
        path = path.replace("%2F", "/")
        match = re.fullmatch(rf"{REPOSITORY}(?:/(resolve|tree|revision)/([^/]+)/?(.*))?", path)
        repo, kind, revision, rest = match.groups() if match else (None,) * 4
        revision = "main" if revision in (None, COMMIT_OF_MAIN) else revision
        if (repo, revision) not in hub.files:
            return self._refuse("RepoNotFound")
        if kind == "resolve":
            content = hub.files[repo, revision].get(rest)
            return self._refuse("EntryNotFound") if content is None else self._answer(content, commit_of(revision))
        if kind == "tree":
            return self._json(hub.tree(repo, revision, rest, "recursive=true" in query.lower()))
        siblings = [{"rfilename": name} for name in hub.files[repo, revision]]
        return self._json({"id": repo, "sha": commit_of(revision), "private": False, "tags": [], "siblings": siblings})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match = re.fullmatch(rf"{REPOSITORY}/paths-info/([^/]+)", self.path.replace("%2F", "/"))
        if not match or match.groups() not in self.hub.files:
            return self._refuse("RepoNotFound")
        entries = (self.hub.entry(*match.groups(), path) for path in body["paths"])
        return self._json([entry for entry in entries if entry])

    def log_message(self, *_) -> None:
        """Nothing on stderr."""

    def _refuse(self, code: str) -> None:
        self.hub.not_found.append(self.path)
        self._answer(b"", "", 404, {"X-Error-Code": code})

    def _json(self, content: object) -> None:
        self._answer(json.dumps(content).encode(), "", headers={"Content-Type": "application/json"})

    def _answer(self, content: bytes, commit: str, status: int = 200, headers: dict | None = None) -> None:
        start, end = 0, len(content)
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end, status = int(asked[1]), int(asked[2] or len(content) - 1) + 1, 206
        part = content[start:end]
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if commit:
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(part)


ReadableHub.handler = _Handler
