"""What the page's Stop does to a training, with the system's own means; runs on Windows as well."""

import subprocess
import sys

from zoo.ui.jobs import groups

WAITS = """
import time
from zoo.training.signals import StopRequest
request = StopRequest()
request.install()
print("ready", flush=True)
while request.code is None:
    time.sleep(0.05)
raise SystemExit(request.code)
"""


def test_a_process_asked_to_end_notes_it_and_a_second_one_beside_it_goes_on() -> None:
    first, second = (
        subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True, **groups.own_group())
        for _ in range(2)
    )
    assert [each.stdout.readline() for each in (first, second)] == ["ready\n", "ready\n"]
    groups.ask_to_end(first)
    assert first.wait(30) == 143 and second.poll() is None
    groups.kill_group(second.pid)
    assert second.wait(30) != 0
    for each in (first, second):
        each.stdout.close()
