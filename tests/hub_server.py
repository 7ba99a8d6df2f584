"""A Hub on the loopback interface: the requests with which `huggingface_hub` and `datasets` push and read repositories."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler

import yaml

from tests.loopback import LoopbackServer


OID = f"{1:040x}"  # the commit of the branch main
MODEL, REPOSITORY = r"/api/(?:models|spaces)/([^/]+/[^/]+)", r"/(?:api/)?(?:models/)?((?:datasets/)?[^/]+/[^/]+)"
ROUTES = (
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("POST", rf"{MODEL}/preupload/\w+", "preupload"),
    ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/lfs/(\w+)\?X-Signature=secret", "upload"),
    ("POST", rf"{MODEL}/commit/\w+", "commit"),
    ("POST", rf"{REPOSITORY}/paths-info/([^/?]+)", "paths_info"),
    ("GET", rf"{REPOSITORY}/tree/([^/?]+)/?([^?]*)\??(.*)", "tree"),
    ("GET", rf"{REPOSITORY}/resolve/([^/?]+)/([^?]+).*", "resolve"),
    ("GET", rf"{REPOSITORY}(?:/revision/([^/?]+))?(?:\?.*)?", "info"),
)
Answer = tuple[int, dict | list | bytes]
REPO_NOT_FOUND = (404, {"error": "RepoNotFound"})


class HubServer(LoopbackServer):
    """Holds what arrives in memory, and serves files by repository and revision with the answers of the real Hub.

    Args:
        files: (repository, revision) to {path: content}. The repositories of data sets begin with "datasets/".
    """

    def __init__(self, files: dict[tuple[str, str], dict[str, bytes]] | None = None):
        self.files = files or {}
        self.repos: dict[
            str, dict
        ] = {}  # pushed: full id to {"private": bool, "files": {path: bytes}, "commits": [...]}
        self.blobs: dict[str, bytes] = {}
        self.fail: dict[str, int | str] = {}  # name of a route to the status that it answers, or to "hang"
        self.tokens: set[str | None] = set()  # the Authorization headers that were seen
        self.calls: list[str] = []  # names of routes
        self.not_found: list[str] = []  # paths of the requests that were answered with 404
        self.closing = threading.Event()

    def __exit__(self, *details) -> None:
        self.closing.set()
        super().__exit__(*details)

    # ---- Pushes ----

    def create(self, body: bytes) -> Answer:
        asked = json.loads(body)
        repo_id = f"{asked['organization'] or 'someone'}/{asked['name']}"
        status = 409 if repo_id in self.repos else 200
        private = asked.get("visibility") == "private"
        kind = {"sdk": asked["sdk"]} if asked.get("type") == "space" else {}
        self.repos.setdefault(repo_id, {"private": private, "files": {}, "commits": [], **kind})
        return status, {"url": f"{self.url}/{repo_id}"}

    def validate(self, body: bytes) -> Answer:
        head = json.loads(body)["content"].split("---")[1]
        errors = [] if isinstance(yaml.safe_load(head), dict) else [{"message": "no mapping at the head of the card"}]
        return 400 if errors else 200, {"warnings": [], "errors": errors}

    def preupload(self, body: bytes, repo_id: str) -> Answer:
        def mode(path: str) -> str:
            return "lfs" if path.endswith((".safetensors", ".pt", ".pth", ".png")) else "regular"

        paths = [file["path"] for file in json.loads(body)["files"]]
        return 200, {"files": [{"path": path, "uploadMode": mode(path), "shouldIgnore": False} for path in paths]}

    def batch(self, body: bytes, repo_id: str) -> Answer:
        def answer(item: dict) -> dict:
            if item["oid"] in self.blobs:
                return item
            return item | {"actions": {"upload": {"href": f"{self.url}/lfs/{item['oid']}?X-Signature=secret"}}}

        return 200, {"transfer": "basic", "objects": [answer(item) for item in json.loads(body)["objects"]]}

    def upload(self, body: bytes, oid: str) -> Answer:
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "content is not what its name says"}
        self.blobs[oid] = body
        return 200, {}

    def commit(self, body: bytes, repo_id: str) -> Answer:
        lines = [json.loads(line) for line in body.splitlines()]
        repo = self.repos[repo_id]
        for line in lines[1:]:
            value = line["value"]
            is_small = line["key"] == "file"  # a large one was uploaded before
            repo["files"][value["path"]] = base64.b64decode(value["content"]) if is_small else self.blobs[value["oid"]]
        repo["commits"].append(lines[0]["value"]["summary"])
        oid = f"{len(repo['commits']):040x}"
        page = f"{self.url}/{'spaces/' if 'sdk' in repo else ''}{repo_id}"
        return 200, {"commitUrl": f"{page}/commit/{oid}", "commitOid": oid, "pullRequestUrl": None}

    # ---- Reading ----

    def files_of(self, repo: str, revision: str | None) -> dict[str, bytes] | None:
        pushed = self.repos.get(repo, {"files": None})["files"]
        return self.files.get((repo, "main" if revision in (None, OID) else revision), pushed)

    def info(self, body: bytes, repo: str, revision: str | None) -> Answer:
        if (files := self.files_of(repo, revision)) is None:
            return REPO_NOT_FOUND
        found = {"siblings": [{"rfilename": path} for path in files], "tags": [], "private": False}
        return 200, {"id": repo, "modelId": repo, "sha": commit_of(revision)} | found

    def resolve(self, body: bytes, repo: str, revision: str, path: str) -> Answer:
        if (files := self.files_of(repo, revision)) is None:
            return REPO_NOT_FOUND
        return (200, files[path]) if path in files else (404, {"error": "EntryNotFound"})

    def tree(self, body: bytes, repo: str, revision: str, folder: str, query: str) -> Answer:
        """Return the entries of a folder, or of everything below it."""
        if (files := self.files_of(repo, revision)) is None:
            return REPO_NOT_FOUND
        prefix, found = f"{folder}/" if folder else "", {}
        for parts in (name.removeprefix(prefix).split("/") for name in files if name.startswith(prefix)):
            for depth in range(1, len(parts) + 1 if "recursive=true" in query.lower() else 2):
                path = prefix + "/".join(parts[:depth])
                found[path] = entry(files, path)
        return 200, list(found.values())

    def paths_info(self, body: bytes, repo: str, revision: str) -> Answer:
        if (files := self.files_of(repo, revision)) is None:
            return REPO_NOT_FOUND
        return 200, [found for path in json.loads(body)["paths"] if (found := entry(files, path))]


def commit_of(revision: str | None) -> str:
    return OID if revision in (None, "main") else revision


def entry(files: dict[str, bytes], path: str) -> dict | None:
    """Return what the Hub's API says about a file or a folder."""
    if path in files:
        oid = hashlib.sha1(files[path]).hexdigest()
        return {"type": "file", "path": path, "size": len(files[path]), "oid": oid}
    is_folder = any(name.startswith(f"{path}/") for name in files)
    return {"type": "directory", "path": path, "size": 0, "oid": "0" * 40} if is_folder else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def do_POST(self) -> None:
        body, path = self._body(), self.path.replace("%2F", "/")
        if path == "/api/agent-harnesses":  # which huggingface_hub asks for once a day
            return self._answer(404, {}, OID)
        for method, pattern, name in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command.replace("HEAD", "GET"):
                status, content = self._run(name, body, match.groups())
                revision = match[2] if name == "resolve" else None
                return self._answer(status, content, commit_of(revision))
        return self._answer(404, {"error": f"no such page: {self.command} {self.path}"}, OID)

    do_PUT = do_GET = do_HEAD = do_POST

    def log_message(self, *_) -> None:
        """Print nothing on stderr."""

    def _run(self, name: str, body: bytes, groups: tuple[str, ...]) -> Answer:
        hub, token = self.hub, self.headers.get("Authorization")
        hub.calls.append(name)
        if name == "upload":  # to the storage of large files
            assert token is None, "storage must not see the token"
        else:
            hub.tokens.add(token)
        fault = hub.fail.get(name)
        if fault == "hang":
            hub.closing.wait()
        if isinstance(fault, int):
            return fault, {"error": f"no, {token}"}  # a server that repeats the token must not bring it into our logs
        return getattr(hub, name)(body, *groups)

    def _answer(self, status: int, content: dict | list | bytes, commit: str) -> None:
        is_file = isinstance(content, bytes)
        body = content if is_file else json.dumps(content).encode()
        headers = {"Content-Type": "application/octet-stream" if is_file else "application/json"}
        if is_file:
            headers |= {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": commit}
            if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                start, end, status = int(asked[1]), int(asked[2] or len(body) - 1) + 1, 206
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(body)}"
                body = body[start:end]
        if status == 404:
            self.hub.not_found.append(self.path)
            headers["X-Error-Code"] = content["error"] if content["error"].endswith("NotFound") else "EntryNotFound"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


HubServer.handler = _Handler
