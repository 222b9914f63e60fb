"""What a signal does to a training, and to the program that trains."""

import signal
import subprocess
import sys

from zoo.training.signals import StopSignal

WAITS = """
import time
from zoo.training.signals import StopSignal
request = StopSignal()
request.install()
print("ready", flush=True)
while request.exit_code is None:
    time.sleep(0.05)
raise SystemExit(request.exit_code)
"""


def test_a_process_asked_to_end_notes_it_and_a_second_one_beside_it_goes_on() -> None:
    first, second = (
        subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True, start_new_session=True)
        for _ in range(2)
    )
    assert [each.stdout.readline() for each in (first, second)] == ["ready\n", "ready\n"]
    first.terminate()
    assert first.wait(30) == 143 and second.poll() is None
    second.kill()
    assert second.wait(30) != 0
    for each in (first, second):
        each.stdout.close()


def test_handlers_of_the_host_program_are_restored() -> None:
    def handler(*_: object) -> None: ...

    numbers = [each for each in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGCHLD", None)) if each is not None]
    before = [signal.signal(number, handler) for number in numbers]
    try:
        stop = StopSignal()
        stop.install()
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        assert stop.exit_code == 143
        stop.uninstall()
        stop.uninstall()
        assert [signal.getsignal(number) for number in numbers] == [handler] * len(numbers)
    finally:
        for number, former in zip(numbers, before, strict=True):
            signal.signal(number, former)
