"""/v1/chat/completions and /v1/models: a real tiny crowd behind the real endpoint, its worker in a thread."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `ui`")
pytest.importorskip("prometheus_client", reason="needs the extra `ui`")

import httpx

from tests.ci_llm.crowd_parts import CONFIGS, crowd
from tests.serve.test_serve import TOKEN, Stub, running, wait_for
from zoo.ci_llm.aggregation.aggregator import Mean
from zoo.ci_llm.data.tokenizers import ByteTokenizer
from zoo.ci_llm.inference.chat import prompt_ids, shown
from zoo.ci_llm.inference.generate import write_answers
from zoo.ci_llm.inference.writer import Writer
from zoo.runs.inference import Arrival
from zoo.runs.interactive import CHAT_GONE, checked
from zoo.ui.warm.pool import Arriving, Failed, Finished

ASK = {"role": "user", "content": "How much?"}
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


class Real(Stub):
    """Answers by a real crowd in the server's own process."""

    def __init__(self) -> None:
        super().__init__()
        config = {**CONFIGS["llama"], "vocab_size": 259, "max_position_embeddings": 128}
        net = crowd(count=2, std=0.4, backbone={"config": config}).eval()
        self.writer = Writer(net, ByteTokenizer(), max_new_tokens=8)
        self.folders: list[Any] = []
        self.order: list[int] = []
        self.most = 0

    def fields(self, run: str, checkpoint: str) -> Any:
        return self.writer.fields()

    def computes_arriving(self) -> bool:
        return True

    def ask_arriving(self, run: str, checkpoint: str, arriving: Arriving) -> None:
        under_way: set[int] = set()
        ended = False

        def arrivals() -> list[Arrival]:
            nonlocal ended
            found = []
            while not arriving.inbox.empty() or not (under_way or ended):
                each = arriving.inbox.get()
                if each is None:
                    ended = True
                    continue
                number, values, folder = each
                under_way.add(number)
                self.folders.append(folder)
                found.append(Arrival(number, checked(self.writer.fields(), values), folder))
            self.most = max(self.most, len(under_way))
            self.go.wait(20)
            return found

        def tell(number: int, found: Any) -> None:
            under_way.discard(number)
            self.order.append(number)
            failed = isinstance(found, Exception)
            arriving.tell(number, Failed(str(found), cause="input") if failed else Finished(tuple(found), 0.1))

        self.writer.answer_arriving(arrivals, tell)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    workers = Real()
    with running(workers, tmp_path_factory.mktemp("served")) as (address, queue):
        yield workers, address, queue


def post(address: str, **body: Any) -> httpx.Response:
    said = json.dumps({"model": "crowd", "messages": [ASK], **body})
    kind = {"Content-Type": "application/json"}
    return httpx.post(f"{address}/v1/chat/completions", content=said, headers=HEADERS | kind, timeout=30)


def alone(workers: Real, only: int | None = None, new: int = 8, stop: Any = ()) -> str:
    """The text that the crowd, or one agent, writes by itself."""
    net, tokenizer = workers.writer.crowd, workers.writer.tokenizer
    ids = prompt_ids(tokenizer, [ASK], workers.writer.template)
    if only is None:
        return write_answers(net, tokenizer, [ids], Mean(), new, stop=stop)[0][0]
    with net.only(only) if only >= 0 else net.without_agents():
        return write_answers(net, tokenizer, [ids], Mean(), new, stop=stop)[0][0]


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_models_are_the_crowd_its_agents_and_the_backbone(served):
    _, address, _ = served
    found = httpx.get(f"{address}/v1/models", headers=HEADERS).json()
    assert [each["id"] for each in found["data"]] == ["crowd", "agent-0", "agent-1", "base"]
    refused = httpx.get(f"{address}/v1/models")
    assert refused.status_code == 401 and refused.json()["error"]["type"] == "invalid_request_error"
    assert httpx.get(f"{address}/v1/models/agent-1", headers=HEADERS).json() == found["data"][2]
    assert httpx.get(f"{address}/v1/models/agent-9", headers=HEADERS).status_code == 404


def test_a_completion_is_what_the_crowd_writes(served):
    workers, address, _ = served
    found = post(address).json()
    (choice,) = found["choices"]
    assert found["object"] == "chat.completion" and found["model"] == "crowd" and found["id"].startswith("chatcmpl-")
    assert choice["message"] == {"role": "assistant", "content": alone(workers)}
    prompt = len(prompt_ids(workers.writer.tokenizer, [ASK], workers.writer.template))
    assert found["usage"] == {"prompt_tokens": prompt, "completion_tokens": 8, "total_tokens": prompt + 8}
    assert choice["finish_reason"] == "length"
    for number in (0, 1):
        text = post(address, model=f"agent-{number}", max_tokens=4).json()["choices"][0]["message"]["content"]
        assert text == alone(workers, number, 4)
    whole = alone(workers)
    stopped = post(address, stop=whole[2:4]).json()["choices"][0]
    assert stopped["message"]["content"] == whole.partition(whole[2:4])[0] and stopped["finish_reason"] == "stop"


def test_a_stream_says_the_same_in_pieces(served):
    workers, address, _ = served
    reply = post(address, stream=True, stream_options={"include_usage": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    first, *middle, last, usage = events(reply.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(each["choices"][0]["delta"]["content"] for each in middle) == alone(workers)
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 8
    assert {each["object"] for each in (first, *middle, last)} == {"chat.completion.chunk"}
    assert len({each["id"] for each in (first, *middle, last, usage)}) == 1
    assert events(post(address, stream=True).text)[-1]["choices"][0]["finish_reason"] == "length"  # no usage asked for


def test_requests_join_what_is_being_computed_and_leave_it(served):
    workers, address, queue = served
    workers.order.clear()
    workers.go.clear()
    workers.most, models = 0, ("crowd", "agent-1", "base", "crowd")
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(post, address)
        wait_for(lambda: workers.most == 1)  # it is about to begin
        others = [pool.submit(post, address, model=model, max_tokens=2) for model in models]
        wait_for(lambda: queue.active == 5)
        time.sleep(0.1)
        workers.go.set()
        texts = [each.result().json()["choices"][0]["message"]["content"] for each in (first, *others)]
    assert workers.most == 5 and workers.order[-1] == 0  # the others came later and left before
    new = {"new": 2}
    assert texts == [
        alone(workers), alone(workers, **new), alone(workers, 1, **new), alone(workers, -1, **new),
        alone(workers, **new),
    ]  # fmt: skip


def test_whoever_hangs_up_leaves_the_others_alone(served):
    workers, address, queue = served
    body = {"model": "agent-1", "messages": [ASK], "stream": True}
    workers.go.clear()
    workers.most = 0
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(post, address)
        wait_for(lambda: workers.most == 1)
        request = httpx.Request("POST", f"{address}/v1/chat/completions", json=body, headers=HEADERS)
        with httpx.Client() as client, ThreadPoolExecutor(1) as leaving:
            stream = leaving.submit(client.send, request, stream=True)
            wait_for(lambda: queue.active == 2)
            time.sleep(0.1)
            workers.go.set()
            stream.result().close()  # in the middle
        assert other.result().json()["choices"][0]["message"]["content"] == alone(workers)
    wait_for(lambda: queue.active == 0)


def test_whoever_leaves_frees_its_rows(served):
    workers, address, queue = served
    workers.go.clear()
    before = len(workers.folders)
    threading.Timer(1.0, workers.go.set).start()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{address}/v1/chat/completions", json={"model": "crowd", "messages": [ASK]}, headers=HEADERS,
                   timeout=0.3)  # fmt: skip
    deadline = time.monotonic() + 10
    while queue.active and time.monotonic() < deadline:
        time.sleep(0.05)
    assert queue.active == 0
    workers.go.wait(5)
    time.sleep(0.3)
    for folder in workers.folders[before:]:
        assert not folder.exists() or (folder / CHAT_GONE).exists()


BAD = {
    "model": ({"model": "agent-7"}, 404),
    "messages": ({"messages": []}, 400),
    "temperature": ({"temperature": 3}, 400),
    "top_p": ({"top_p": 0}, 400),
    "max_tokens": ({"max_tokens": 0}, 400),
    "stop": ({"stop": ["a"] * 5}, 400),
    "n": ({"n": 2}, 400),
    "n of truth": ({"n": True}, 400),
    "logprobs": ({"logprobs": True}, 400),
    "stream": ({"stream": "yes"}, 400),
    "stream_options": ({"stream_options": 5}, 400),
    "model left out": ({"model": None}, 400),
    "messages of half a letter": ({"messages": [{"role": "user", "content": "a\ud800"}]}, 400),
    "stop of half a letter": ({"stop": "\udfff"}, 400),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_get_one_line(served, name):
    body, code = BAD[name]
    reply = post(served[1], **body)
    error = reply.json()["error"]
    assert reply.status_code == code and error["param"] == name.split()[0] and error["type"] == "invalid_request_error"
    assert error["message"] and "\n" not in error["message"]


def test_what_clients_send_without_meaning_it(served):
    idle = {"tools": [], "logit_bias": {}, "frequency_penalty": 0, "response_format": {"type": "text"}, "user": "me"}
    assert post(served[1], max_tokens=1, **idle).status_code == 200


def test_without_a_seed_draws_differ_and_with_one_they_do_not(served):
    warm = {"temperature": 1.0, "stop": None}
    texts = [post(served[1], **warm).json()["choices"][0]["message"]["content"] for _ in range(3)]
    assert len(set(texts)) > 1
    first, second = (post(served[1], **warm, seed=5).json()["choices"] for _ in range(2))
    assert first == second


def test_what_does_not_fit_is_told_before_the_stream(served):
    long = {"role": "user", "content": "x" * 200}
    for stream in (False, True):
        reply = post(served[1], messages=[long], stream=stream)
        assert reply.status_code == 422 and "leaves no room" in reply.json()["error"]["message"]


def test_other_systems_have_no_chats(tmp_path):
    with running(Stub(), tmp_path) as (address, _):
        reply = httpx.get(f"{address}/v1/models", headers=HEADERS)
        assert reply.status_code == 404 and "no language model" in reply.json()["error"]["message"]


def test_letters_and_stop_strings_are_held_back_until_they_are_whole():
    assert shown("caf\ufffd", (), False) == "caf" and shown("caf\ufffd", (), True) == "caf\ufffd"
    assert shown("some st", ("stop",), False) == "some " and shown("some st", ("stop",), True) == "some st"
    assert shown("some stop, more", ("stop",), False) == "some "
