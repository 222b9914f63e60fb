"""A server on this machine with the part of a Hugging Face hub's API that pushing and loading a model uses.

Written after the sources of huggingface_hub 2.4.0 and checked by running it. Xet is not implemented: it needs
HF_HUB_DISABLE_XET=1. Nothing here contacted a real hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_SecretOfTheTests"
REPO = r"(?P<repo>[^/]+/[^/]+)"


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repo:
    private: bool
    commits: dict[str, dict[str, str]] = field(default_factory=dict)  # commit -> path -> key of the content
    messages: list[str] = field(default_factory=list)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, str], message: str) -> str:
        content = json.dumps([sorted(files.items()), message, len(self.commits)])
        name = hashlib.sha1(content.encode()).hexdigest()
        self.commits[name] = files
        self.messages.append(message)
        self.branches[branch] = name
        return name

    def find(self, revision: str) -> str | None:
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class Hub(ThreadingHTTPServer):
    """The server; `repos` and `contents` may be looked into.

    Attributes:
        lfs: hashes of contents that came by LFS.
        requests: "METHOD path" of each, and `bodies` of uploads by hash: how often they came whole.
        hold: while set, an upload stops half way, and `held` is set when one does.
        asked_by: values of the header Authorization.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, Repo] = {}
        self.contents: dict[str, bytes] = {}
        self.lfs: set[str] = set()
        self.requests: list[str] = []
        self.bodies: list[str] = []
        self.hold, self.held = threading.Event(), threading.Event()
        self.asked_by: set[str | None] = set()
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no news."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        model = self.repos[repo]
        return {path: self.contents[key] for path, key in model.commits[model.find(revision) or ""].items()}

    def put(self, repo: str, files: dict[str, bytes]) -> str:
        """A repository as anybody may have filled it."""
        keys = {path: self.keep(content, path.endswith((".safetensors", ".bin"))) for path, content in files.items()}
        return self.repos.setdefault(repo, Repo(False)).commit("main", keys, "by hand")

    def keep(self, content: bytes, lfs: bool) -> str:
        key = hashlib.sha256(content).hexdigest() if lfs else git_hash(content)
        self.contents[key] = content
        if lfs:
            self.lfs.add(key)
        return key


class RefusedError(Exception):
    """A code of the hub and an HTTP status."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *args: object) -> None:
        """Be silent."""

    def answer(self, content: object = None, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_one(self) -> None:
        url = urlsplit(self.path)
        self.server.requests.append(f"{self.command} {url.path}")
        self.server.asked_by.add(self.headers.get("Authorization"))
        for method, pattern, do in ROUTES:
            match = re.fullmatch(pattern, url.path)
            if match and self.command in method:
                with suppress(BrokenPipeError, ConnectionResetError):
                    try:
                        do(self, **{key: unquote(value) for key, value in match.groupdict().items()})
                    except RefusedError as error:
                        code, status = error.args
                        self.answer({"error": code}, status, X_Error_Code=code, X_Error_Message=code)
                return
        self.body()
        self.answer({"error": f"this server has no {self.command} {url.path}"}, 501)

    do_GET = do_HEAD = do_POST = do_PUT = handle_one

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def find_repo(self, repo: str, write: bool = False) -> Repo:
        is_authorized = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if write and not is_authorized:
            self.body()
            raise RefusedError("InvalidToken", 401)
        model = self.server.repos.get(repo)
        if model is None or (model.private and not is_authorized):
            raise RefusedError("RepoNotFound", 404 if is_authorized else 401)
        return model

    def find_files(self, repo: str, revision: str) -> tuple[str, dict[str, str]]:
        """The commit of a revision, and its files."""
        model = self.find_repo(repo)
        if (commit := model.find(revision)) is None:
            raise RefusedError("RevisionNotFound", 404)
        return commit, dict(sorted(model.commits[commit].items()))

    def describe(self, key: str, oid: str) -> dict[str, object]:
        size = len(self.server.contents[key])
        lfs = {"lfs": {"size": size, oid: key, "pointerSize": 130}} if key in self.server.lfs else {}
        return {"size": size, **lfs}

    def info(self, repo: str, revision: str = "main") -> None:
        commit, files = self.find_files(repo, revision)
        siblings = [
            {"rfilename": path, "blobId": key[:40], **self.describe(key, "sha256")} for path, key in files.items()
        ]
        private = self.server.repos[repo].private
        self.answer({"id": repo, "sha": commit, "private": private, "siblings": siblings, "tags": []})

    def tree(self, repo: str, revision: str) -> None:
        _, files = self.find_files(repo, revision)
        rows = [
            {"type": "file", "path": path, "oid": key[:40]} | self.describe(key, "oid") for path, key in files.items()
        ]
        self.answer(rows)

    def resolve(self, repo: str, revision: str, path: str) -> None:
        commit, files = self.find_files(repo, revision)
        if (key := files.get(path)) is None:
            raise RefusedError("EntryNotFound", 404)
        content = self.server.contents[key]
        headers = {"X_Repo_Commit": commit, "ETag": f'"{key}"'}
        if key in self.server.lfs:
            headers |= {"X_Linked_Etag": f'"{key}"', "X_Linked_Size": str(len(content))}
        self.answer(content, **headers, Content_Length=str(len(content)))

    def create(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.body()
            raise RefusedError("InvalidToken", 401)
        request = json.loads(self.body())
        repo = f"{request['organization']}/{request['name']}"
        url = {"url": f"{self.server.address}/{repo}"}
        if repo in self.server.repos:
            return self.answer({**url, "error": "You already created this model repo"}, 409)
        private = request.get("visibility") == "private" or request.get("private") is True
        self.server.repos[repo] = Repo(private)
        self.server.repos[repo].commit("main", {".gitattributes": self.server.keep(b"*.safetensors lfs\n", False)}, "")
        self.answer(url)

    def branch(self, repo: str, branch: str) -> None:
        model = self.find_repo(repo, write=True)
        self.body()
        if branch in model.branches:
            return self.answer({"error": "Reference already exists"}, 409)
        model.branches[branch] = model.branches["main"]
        self.answer({})

    def validate(self) -> None:
        front = json.loads(self.body())["content"].split("---")
        is_valid = len(front) > 2 and "library_name: zoo" in front[1]
        self.answer(
            {"errors": [] if is_valid else [{"message": "no metadata"}], "warnings": []}, 200 if is_valid else 400
        )

    def preupload(self, repo: str, revision: str) -> None:
        model = self.find_repo(repo, write=True)
        current = model.commits[model.find(revision) or ""]
        rows = []
        for file in json.loads(self.body())["files"]:
            mode = "lfs" if file["path"].endswith((".safetensors", ".onnx", ".wav", ".png")) else "regular"
            row = {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
            rows.append({**row, **({"oid": current[file["path"]]} if file["path"] in current else {})})
        self.answer({"files": rows})

    def batch(self, repo: str) -> None:
        self.find_repo(repo, write=True)
        rows = []
        for each in json.loads(self.body())["objects"]:
            row = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in self.server.contents:
                url = f"{self.server.address}/lfs/{each['oid']}"
                row["actions"] = {"upload": {"href": url}}
            rows.append(row)
        self.answer({"transfer": "basic", "objects": rows})

    def upload(self, oid: str) -> None:
        if self.server.hold.is_set():
            self.rfile.read(min(1000, int(self.headers.get("Content-Length") or 1000)))
            self.server.held.set()
            while self.server.hold.is_set():
                threading.Event().wait(0.02)
            self.close_connection = True
            return
        content = self.body()
        if hashlib.sha256(content).hexdigest() != oid:
            return self.answer({"error": "hash"}, 400)
        with self.server.lock:
            self.server.bodies.append(oid)
            self.server.keep(content, True)
        self.answer({})

    def commit(self, repo: str, revision: str) -> None:
        model = self.find_repo(repo, write=True)
        files = dict(model.commits[model.find(revision) or ""])
        message = ""
        for line in self.body().splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                message = value["summary"]
            elif item["key"] == "file":
                files[value["path"]] = self.server.keep(base64.b64decode(value["content"]), False)
            elif item["key"] == "lfsFile":
                if value["oid"] not in self.server.lfs:
                    return self.answer({"error": "LFS pointer pointed to a file that does not exist"}, 400)
                files[value["path"]] = value["oid"]
            elif item["key"] == "deletedFile":
                files.pop(value["path"], None)
        oid = model.commit(revision, files, message)
        self.answer({"success": True, "commitOid": oid, "commitUrl": f"{self.server.address}/{repo}/commit/{oid}"})


Route = tuple[str, str, Callable[..., None]]
ROUTES: tuple[Route, ...] = (
    ("POST", r"/api/repos/create", Handler.create),
    ("POST", r"/api/validate-yaml", Handler.validate),
    ("GET", rf"/api/models/{REPO}", Handler.info),
    ("GET", rf"/api/models/{REPO}/revision/(?P<revision>[^/]+)", Handler.info),
    ("GET", rf"/api/models/{REPO}/tree/(?P<revision>[^/]+)", Handler.tree),
    ("POST", rf"/api/models/{REPO}/branch/(?P<branch>[^/]+)", Handler.branch),
    ("POST", rf"/api/models/{REPO}/preupload/(?P<revision>[^/]+)", Handler.preupload),
    ("POST", rf"/api/models/{REPO}/commit/(?P<revision>[^/]+)", Handler.commit),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.upload),
    ("GET HEAD", rf"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
)
