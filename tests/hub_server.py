"""A Hub on the loopback interface: the endpoints that huggingface_hub's client calls to make a repository, commit files and load them.

Large files arrive by LFS or, from a client with hf_xet, by XET: then as compressed chunks, of which only the hash is kept.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler

import yaml

from tests.loopback import LoopbackServer


class HubServer(LoopbackServer):
    """Holds what arrives in memory; `fail` makes an endpoint answer a status, or hang until the server closes.

    Attributes:
        repos: full id to {"private": bool, "files": {path: bytes}, "commits": [message]}.
        fail: endpoint name (create, preupload, batch, upload, xorb, commit) to a status, or to "hang".
        tokens: the Authorization headers that were seen.
        calls: endpoint names in order.
    """

    def __init__(self):
        self.repos: dict[str, dict] = {}
        self.blobs: dict[str, bytes] = {}
        self.shards: list[bytes] = []  # what XET's client says of the files whose chunks it has uploaded
        self.fail: dict[str, int | str] = {}
        self.tokens: set[str | None] = set()
        self.calls: list[str] = []
        self.closing = threading.Event()

    def __exit__(self, *details) -> None:
        self.closing.set()
        super().__exit__(*details)

    def create(self, body: bytes) -> tuple[int, dict]:
        asked = json.loads(body)
        repo_id = f"{asked['organization'] or 'someone'}/{asked['name']}"
        status = 409 if repo_id in self.repos else 200
        private = asked.get("visibility") == "private"
        self.repos.setdefault(repo_id, {"private": private, "files": {}, "commits": []})
        return status, {"url": f"{self.url}/{repo_id}"}

    def validate(self, body: bytes) -> tuple[int, dict]:
        head = json.loads(body)["content"].split("---")[1]
        errors = [] if isinstance(yaml.safe_load(head), dict) else [{"message": "no mapping at the head of the card"}]
        return 400 if errors else 200, {"warnings": [], "errors": errors}

    def preupload(self, body: bytes, repo_id: str) -> tuple[int, dict]:
        large = (".safetensors", ".pt", ".pth", ".png")
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(large) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        return 200, {"files": files}

    def batch(self, body: bytes, repo_id: str) -> tuple[int, dict]:
        def answer(item: dict) -> dict:
            if item["oid"] in self.blobs:
                return item
            return item | {"actions": {"upload": {"href": f"{self.url}/lfs/{item['oid']}?X-Signature=secret"}}}

        return 200, {"transfer": "basic", "objects": [answer(item) for item in json.loads(body)["objects"]]}

    def upload(self, body: bytes, oid: str) -> tuple[int, dict]:
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "content is not what its name says"}
        self.blobs[oid] = body
        return 200, {}

    def xet_token(self, body: bytes, repo_id: str) -> tuple[int, dict]:
        return 200, {"casUrl": self.url, "accessToken": XET_TOKEN, "exp": int(time.time()) + 3600}

    def xorb(self, body: bytes, name: str) -> tuple[int, dict]:
        return 200, {"was_inserted": True}

    def shard(self, body: bytes) -> tuple[int, dict]:
        self.shards.append(body)
        return 200, {"result": 1}

    def commit(self, body: bytes, repo_id: str) -> tuple[int, dict]:
        lines = [json.loads(line) for line in body.splitlines()]
        repo = self.repos[repo_id]
        for line in lines[1:]:
            value = line["value"]
            content = base64.b64decode(value["content"]) if line["key"] == "file" else self._large_file(value["oid"])
            repo["files"][value["path"]] = content
        repo["commits"].append(lines[0]["value"]["summary"])
        oid = f"{len(repo['commits']):040x}"
        return 200, {"commitUrl": f"{self.url}/{repo_id}/commit/{oid}", "commitOid": oid, "pullRequestUrl": None}

    def info(self, body: bytes, repo_id: str) -> tuple[int, dict]:
        if repo_id not in self.repos:
            return 404, {"error": "no such repository"}
        files = [{"rfilename": path} for path in self.repos[repo_id]["files"]]
        return 200, {"id": repo_id, "modelId": repo_id, "sha": OID, "tags": [], "siblings": files, "private": False}

    def resolve(self, body: bytes, repo_id: str, path: str) -> tuple[int, dict | bytes]:
        content = self.repos.get(repo_id, {"files": {}})["files"].get(path)
        return (404, {"error": "no such file"}) if content is None else (200, content)

    def _large_file(self, oid: str) -> bytes:
        if oid in self.blobs:
            return self.blobs[oid]
        words = [bytes.fromhex(oid[start : start + 16])[::-1] for start in range(0, 64, 16)]  # little-endian
        if any(b"".join(words) in shard for shard in self.shards):
            return XET_PREFIX + oid.encode()
        raise KeyError(oid)  # it was not uploaded; the client sees the connection break


XET_TOKEN = "xet-access-token"
XET_PREFIX = b"in XET, sha256 "
OID = f"{1:040x}"
ROUTES = (
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("POST", r"/api/models/([^/]+/[^/]+)/preupload/\w+", "preupload"),
    ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/lfs/(\w+)\?X-Signature=secret", "upload"),
    ("GET", r"/api/models/([^/]+/[^/]+)/xet-write-token/\w+", "xet_token"),
    ("POST", r"/v1/xorbs/default/(\w+)", "xorb"),
    ("POST", r"/v1/shards", "shard"),
    ("POST", r"/api/models/([^/]+/[^/]+)/commit/\w+", "commit"),
    ("GET", r"/api/models/([^/]+/[^/]+)(?:/revision/\w+)?", "info"),
    ("GET", r"/([^/]+/[^/]+)/resolve/\w+/(.+)", "resolve"),
)
TO_STORAGE = ("upload", "xorb", "shard")  # where large files go, and the token must not


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def do_POST(self) -> None:
        body = self._body()
        for method, pattern, name in ROUTES:
            match = re.fullmatch(pattern, self.path)
            if match and method == self.command.replace("HEAD", "GET"):
                return self._answer(*self._run(name, body, match.groups()))
        return self._answer(404, {"error": f"no such page: {self.command} {self.path}"})

    do_PUT = do_GET = do_HEAD = do_POST

    def log_message(self, *_) -> None:
        """Nothing on stderr."""

    def _run(self, name: str, body: bytes, groups: tuple[str, ...]) -> tuple[int, dict | bytes]:
        hub, token = self.hub, self.headers.get("Authorization")
        hub.calls.append(name)
        if name not in TO_STORAGE:
            hub.tokens.add(token)
        else:
            assert token in (None, f"Bearer {XET_TOKEN}"), "storage must not see the token"
        fault = hub.fail.get(name)
        if fault == "hang":
            hub.closing.wait()
        if isinstance(fault, int):
            return fault, {"error": f"no, {token}"}  # a server that repeats the token must not bring it into our logs
        return getattr(hub, name)(body, *groups)

    def _answer(self, status: int, content: dict | bytes) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if isinstance(content, bytes):
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", OID)
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
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
